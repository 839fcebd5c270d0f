"""Reasoning and tool calls in a model's text: pure objects, text in, events out."""
