"""The MLX backend: Apple silicon through Metal, and Linux CPUs for tests and comparisons."""
