"""The engine's core: scheduling, blocks and the loop. Pure Python and NumPy; imports no array library."""
