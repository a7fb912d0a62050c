"""The errors of preparing a checkpoint."""


class PrepareError(Exception):
    """A step failed, or preparing cannot begin; the message names what, and the remedy."""


class PrepareRefusedError(PrepareError):
    """The comparison refuses all checkpoints that were made."""
