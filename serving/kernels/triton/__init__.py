"""The kernels in Triton, for GPUs; Triton's interpreter runs them on a CPU too, slowly."""
