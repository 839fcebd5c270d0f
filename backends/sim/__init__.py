"""A backend without arrays: a virtual clock and a cost model, for tests and planning."""
