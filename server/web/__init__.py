"""The page at ``/``: files as they are served, and what serves them."""
