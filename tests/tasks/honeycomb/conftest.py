"""Hypothesis without a deadline, because a busy machine may delay any example."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
