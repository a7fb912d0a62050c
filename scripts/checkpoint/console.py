"""How the weight scripts talk: progress and messages on stderr, errors without a traceback.

Owns: the look. Knows nothing of what is done.

    with report_errors(), progress_bar("Packing", checkpoint) as progress: progress(nbytes)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from serving.errors import ServingError

from . import tensors
from .errors import CheckpointError

_console = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """One line on stderr."""
    _console.print(message, markup=False, soft_wrap=True)


@contextmanager
def report_errors() -> Iterator[None]:
    """End with status 1 and the message of an error that was raised on purpose."""
    try:
        yield
    except (CheckpointError, ServingError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from error


@contextmanager
def progress_bar(title: str, checkpoint: tensors.Checkpoint) -> Iterator[tensors.Progress]:
    """A bar over the bytes of a checkpoint; takes the bytes that are done."""
    total = sum(spec.nbytes for spec in checkpoint.specs().values())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda nbytes: bar.advance(task, nbytes)
        bar.update(task, completed=total)
