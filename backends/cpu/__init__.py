"""CPU kernels: quantised linear layers and attention, compiled at first use."""
