"""Errors of the road from a base and an adapter to a locked checkpoint."""


class RoadError(Exception):
    """A step failed, or the road cannot be begun; the message names what, and the remedy."""


class RoadStopped(Exception):
    """Somebody stopped the road; what was done stays."""
