"""Predictions: what is kept of them, and how they run."""
