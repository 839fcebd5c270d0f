"""One model over several GPUs of a machine: each holds a share of every matrix; see docs/tensor-parallel.md."""
