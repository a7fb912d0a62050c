"""The error of the weights pipeline."""


class CheckpointError(Exception):
    """A checkpoint, adapter or other input cannot be used; the message names it and the remedy."""
