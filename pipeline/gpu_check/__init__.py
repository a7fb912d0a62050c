"""Checks and measures the engines on a GPU, for scripts/gpu_check; without one, as much as a CPU can show."""
