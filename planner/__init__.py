"""What fits, and how fast it could be: predictions from headers and published figures, before anything is loaded."""
