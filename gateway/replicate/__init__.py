"""Replicate's HTTP API, as far as its official clients need it."""
