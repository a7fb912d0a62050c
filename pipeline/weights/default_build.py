"""Build the weights of a recipe unless they match their lock already."""

from __future__ import annotations

from pathlib import Path

from pipeline.weights.atomic import write_text
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.recipes import Sources
from serving.errors import WeightsError
from serving.weights import verify
from serving.weights.lock import default_weights_dir

CONFIDENCE = "confidence.json"  # in a recipe, and NAME.confidence.json beside its weights: see tasks.confidence


def build_weights(sources: Sources, output: Path | None, lock: Path, *, relock: bool = False) -> None:
    """Build the weights that the lock describes, unless `output` matches it already.

    Args:
        output: the folder of the weights; None takes the one that the lock names.
        relock: whether to build again without comparing with the lock, because it will be rewritten.

    Raises:
        CheckpointError: a source cannot be used, or the lock is missing or of other weights.
        WeightsError: the result does not match the lock.
    """
    name = sources.recipe.name
    if not relock and not lock.is_file():
        raise CheckpointError(f"{lock} is missing: pass --relock, and then run scripts/lock_weights {name}")
    if output is None:
        output = default_weights_dir(lock)
        if output.name != name:
            raise CheckpointError(f"{lock} is of {output.name}, not of {name}; give another --lock, or --output")
    if not relock and _is_built(output, lock):
        _place_confidence(sources, output)
        say(f"{output} matches {lock.name}; nothing to do")
        return
    from pipeline.weights.build_from_sources import (  # imports numpy and readers of formats, which takes time
        build,
        one_at_a_time,
    )

    with one_at_a_time(sources.cache):
        if relock:
            build(sources, output, lock=None)
        elif not _is_built(output, lock):  # another process may have built them meanwhile
            build(sources, output, lock)
            verify(output, lock)
    if not relock:  # what was measured of the locked weights
        _place_confidence(sources, output)
    say(f"Built {output}")


def build_merged(sources: Sources, output: Path) -> None:
    """Write the checkpoint before quantization, in fp32.

    Raises:
        CheckpointError: a source cannot be used.
    """
    from pipeline.weights.build_from_sources import build_unquantized, one_at_a_time

    with one_at_a_time(sources.cache):
        build_unquantized(sources, output)
    say(f"Built {output}")


def _place_confidence(sources: Sources, output: Path) -> None:
    if (measured := sources.recipe.folder / CONFIDENCE).is_file():
        write_text(output.with_name(f"{output.name}.{CONFIDENCE}"), measured.read_text("utf-8"))


def _is_built(output: Path, lock: Path) -> bool:
    try:
        verify(output, lock)
    except WeightsError:
        return False
    return True
