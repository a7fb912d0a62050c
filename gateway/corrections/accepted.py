"""Reads the corrections that were accepted, from the gateway's file or from JSONL, for scripts/improve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from gateway.corrections.correction import Correction, Kind, State
from gateway.corrections.correction_file import CorrectionFile
from gateway.corrections.lines import LineError, read_lines

_SQLITE: Final = b"SQLite format 3\0"


def accepted(path: Path, adapter: str | None = None) -> Iterator[Correction]:
    """The accepted corrections and examples of a model, oldest first.

    Args:
        path: a gateway's corrections.sqlite, or its predictions.sqlite, which lies beside; or JSONL, of which lines
            that name no state count as accepted.
        adapter: the name of the adapter that answered; None for the plain model.

    Raises:
        LineError: a line cannot be read.
        OSError: there is no such file.
    """
    with path.open("rb") as file:
        is_database = file.read(len(_SQLITE)) == _SQLITE
    if is_database:
        place = path if path.name.startswith("corrections") else path.with_name("corrections.sqlite")
        if not place.is_file():
            raise LineError(f"there is no {place}, which the gateway keeps corrections in; nobody has corrected yet")
        with closing(CorrectionFile(place)) as kept:
            found = kept.all(state=State.ACCEPTED)
    else:
        with path.open(encoding="utf-8") as lines:
            found = list(read_lines(lines, unsaid=State.ACCEPTED))
    for one in found:
        if one.state is State.ACCEPTED and one.kind is not Kind.REPORT and one.adapter == adapter:
            yield one
