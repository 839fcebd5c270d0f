"""Kernels run in Triton's interpreter, which must be chosen before they are imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
