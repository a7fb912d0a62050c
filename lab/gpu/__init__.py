"""Checks and measures the kernels and the paged engine on a GPU; without one, as much as a CPU can show."""
