"""Measures several engines in one run on one machine; start reading at `command`."""
