"""OpenAI's Responses API: items in, items out, events in order."""
