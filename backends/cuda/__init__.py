"""The torch backend: plain torch operations as the reference, Triton kernels on a GPU."""
