"""``bireme doctor``: what this machine can do, which device would be chosen and why, and what to do about problems."""
