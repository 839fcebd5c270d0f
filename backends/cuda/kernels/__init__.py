"""Triton kernels. Each has a plain torch reference that it is tested against; see docs/kernels.md."""

import os

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # a version that finds it unset warns; fused is meant
