"""A chat in the terminal: ``bireme run``. It speaks to a server like any other client, to one of its own if need be."""
