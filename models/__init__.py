"""Checkpoints, tokenizers and architectures. Imports neither torch nor mlx."""
