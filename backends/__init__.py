"""Backends: each runs steps (see ``base.py``) on one kind of device."""
