"""Hypothesis without a deadline: a shared machine may stall any single example."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
