"""Compare a checkpoint with what was made of it, and refuse it past limits."""
