"""Writes the output: the rows that have a result, in the order of the input, with what they had and their answers."""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.batch.errors import BatchError
from pipeline.batch.parquet import write_parquet
from pipeline.batch.rows import RowAnswer
from pipeline.weights.atomic import partial_file

OutputRow = dict[str, Any]


def to_line(value: Any) -> bytes:
    """One line of UTF-8. Text that is not valid Unicode (half a surrogate pair) is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode() + b"\n"


class Output:
    """The file for the results.

    Args:
        path: ends in .jsonl, .csv or .parquet.
        types: DuckDB's type of each column of the input.
        answer: name of the column for answers. The columns of error and tokens begin with it.

    Raises:
        BatchError: the ending is unknown, or the input has a column of the same name.
    """

    def __init__(self, path: Path, types: Mapping[str, str], answer: str) -> None:
        if path.suffix not in _WRITERS:
            raise BatchError(f"--out {path}: unknown ending {path.suffix!r}; give one of {', '.join(_WRITERS)}")
        added = {
            answer: "VARCHAR",
            f"{answer}_error": "VARCHAR",
            f"{answer}_input_tokens": "BIGINT",
            f"{answer}_output_tokens": "BIGINT",
        }
        if both := sorted(added.keys() & types.keys()):
            raise BatchError(f"the input has a column {both[0]!r} already; give another --answer NAME")
        self.path, self._types, self._added = path, {**types, **added}, tuple(added)

    def write(self, results: Iterable[tuple[dict[str, Any], RowAnswer]]) -> None:
        """Write all results, atomically; only one process at a time may do so.

        Args:
            results: values of a row by column, and its answer.
        """
        for left in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.partial"):  # by a process that was killed
            left.unlink()
        with partial_file(self.path) as partial:
            _WRITERS[self.path.suffix](self._rows(results), self._types, partial)

    def _rows(self, results: Iterable[tuple[dict[str, Any], RowAnswer]]) -> Iterator[OutputRow]:
        for values, one in results:
            added = (one.answer, one.error, one.input_tokens, one.output_tokens)
            yield {**values, **dict(zip(self._added, added, strict=True))}


def _write_jsonl(rows: Iterable[OutputRow], types: Mapping[str, str], path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(map(to_line, rows))


def _write_csv(rows: Iterable[OutputRow], types: Mapping[str, str], path: Path) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(file, list(types), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _field(value) for name, value in row.items()} for row in rows)


def _field(value: Any) -> Any:
    """Text and numbers as they are, null as nothing, everything else as JSON."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False)


def _write_parquet(rows: Iterable[OutputRow], types: Mapping[str, str], path: Path) -> None:
    lines = path.with_name(f"{path.name}.lines.partial")
    try:
        with lines.open("wb") as file:
            # DuckDB reads no half of a surrogate pair, not even an escaped one.
            file.writelines(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n" for row in rows)
        write_parquet(lines, types, path)
    finally:
        lines.unlink(missing_ok=True)


_WRITERS: Final[dict[str, Callable[[Iterable[OutputRow], Mapping[str, str], Path], None]]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
