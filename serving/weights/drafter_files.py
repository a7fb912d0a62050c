"""Report errors in the drafter's files, which lie beside a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from serving.errors import WeightsError


@contextmanager
def as_weights_error(path: Path) -> Iterator[None]:
    """Turn any error while reading a file of the drafter into a WeightsError that names the file."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is not a valid drafter file: {error}; build the weights again") from error
