"""The CPU device's own kernels: quantised linear layers, attention and the small operations between them."""
