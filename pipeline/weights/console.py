"""Messages, progress bars and errors without a traceback on stderr, for commands.

with report_errors(), progress_bar("Packing", checkpoint) as progress: progress(nbytes)
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors import SafetensorError

from pipeline.weights import tensors
from pipeline.weights.errors import CheckpointError
from serving.errors import ServingError

INTERRUPTED = 130  # the exit code that shells expect after Ctrl-C

_console = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Print one line on stderr."""
    _console.print(message, markup=False, soft_wrap=True)


@contextmanager
def report_errors(*more: type[Exception]) -> Iterator[None]:
    """Exit with status 1 and the message of an expected error: ours, one of `more`, or one about a file."""
    expected: tuple[type[Exception], ...] = (CheckpointError, ServingError, *more)
    try:
        yield
    except expected as error:
        say(f"error: {error}")
        raise typer.Exit(1) from error
    except (OSError, SafetensorError) as error:
        if (text := _about_files(error)) is None:
            raise
        say(f"error: {text}")
        raise typer.Exit(1) from error


def _about_files(error: OSError | SafetensorError) -> str | None:
    """What is wrong with a file, a folder or the disk, and what to do; None for errors that are not about one."""
    if isinstance(error, OSError):
        number, place = error.errno, f"{error.filename}: " if error.filename else ""
    else:  # safetensors gives the number in its text only
        found = re.search(r"\(os error (\d+)\)", str(error))
        number, place = int(found[1]) if found else None, ""
    reason = f"{place}{os.strerror(number)}" if number is not None else ""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{reason}; make room, or give a folder on another disk, and run the same command again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}; give a folder that you may write to"
    return reason if isinstance(error, OSError) and error.filename and reason else None


def progress_bar(title: str, checkpoint: tensors.CheckpointTensors) -> AbstractContextManager[tensors.Progress]:
    """A progress bar over the bytes of a checkpoint; call it with the number of bytes done."""
    return byte_bar(title, sum(spec.nbytes for spec in checkpoint.specs().values()))


@contextmanager
def byte_bar(title: str, total: int) -> Iterator[tensors.Progress]:
    """A progress bar over `total` bytes; call it with the number of bytes done."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda nbytes: bar.advance(task, nbytes)
        bar.update(task, completed=total)
