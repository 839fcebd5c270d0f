"""GELU by tanh (arXiv:1606.08415), as Gemma has it: x / 2 (1 + tanh(SLOPE (x + CUBE x^3)))."""

from __future__ import annotations

import math

GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715
