"""Kernels in Metal's own language for what MLX's operations do at a cost: paged attention, small quantised products."""
