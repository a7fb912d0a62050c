"""What goes wrong on the way to a checkpoint.

Owns: the error of the scripts. Knows nothing of who raises it.

    raise CheckpointError("rank 0 is no rank; give r ≥ 1 in adapter_config.json")
"""


class CheckpointError(Exception):
    """An input of the scripts cannot be used; the message names it and says what to do."""
