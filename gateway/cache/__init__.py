"""The cache, which gives kept answers again to equal requests."""
