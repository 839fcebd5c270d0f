"""Weights of 8-bit floating-point numbers (E4M3 without infinities, arXiv:2209.05433) with a scale per block, row or
tensor."""

from __future__ import annotations

KIND = "F8_E4M3"
