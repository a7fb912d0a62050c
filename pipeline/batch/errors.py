"""The error of a batch run."""


class BatchError(Exception):
    """The run cannot start or continue; the message names the problem and the remedy."""
