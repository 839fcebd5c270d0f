"""The HTTP endpoints, one file per noun."""
