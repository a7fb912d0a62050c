"""The errors of preparing a checkpoint."""


class PrepareError(Exception):
    """A step failed, or preparing cannot begin; the message names what, and the remedy."""


class PrepareStopped(Exception):
    """Somebody stopped the command; what was done stays."""
