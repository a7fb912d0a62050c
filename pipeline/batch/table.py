"""Reads the rows of JSONL, CSV and Parquet files, always in the same order, and finds the types of their columns.

A row that cannot be read becomes a row with a problem, so that one bad line does not stop a run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.batch.errors import BatchError
from pipeline.batch.parquet import parquet_rows, parquet_types
from pipeline.batch.rows import Row
from pipeline.weights.digest import sha256

_TEXT: Final = "VARCHAR"
_ANY: Final = "JSON"
_INT64: Final = 1 << 63
_LARGEST_FIELD: Final = 1 << 24  # characters of a CSV field; Python's default is 128 KiB

Record = tuple[dict[str, Any], str | None]  # values and problem


def _type(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -_INT64 <= value < _INT64 else _ANY
        case float():
            return "DOUBLE"
        case str():
            return _TEXT
    return _ANY


def _wider(first: str | None, second: str | None) -> str | None:
    if first is None or second is None or first == second:
        return first or second
    return "DOUBLE" if {first, second} == {"BIGINT", "DOUBLE"} else _ANY


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over all rows found.

    Args:
        num_rows: number of rows, also of those with a problem.
        types: DuckDB's name of each column's type, in the order of the columns.
        digests: SHA-256 by file name.
    """

    num_rows: int
    types: dict[str, str]
    digests: dict[str, str]


class Table:
    """All rows of a file, or of the files of one format in a folder.

    Args:
        path: a file that ends in .jsonl, .csv or .parquet, or a folder of such files, which are read in order of name.

    Raises:
        BatchError: there is no such file, or the folder has several formats.
    """

    def __init__(self, path: Path) -> None:
        self.files = _files(path)
        self.suffix = self.files[0].suffix
        self._read = _READERS[self.suffix]

    def rows(self) -> Iterator[Row]:
        """All rows, in the same order every time."""
        number = 0
        for file in self.files:
            for values, problem in self._read(file):
                yield Row(number, values, problem)
                number += 1

    def survey(self) -> Survey:
        """Count the rows, find columns and types, and compute digests.

        A type is the narrowest one that holds all values of its column; a column that is always null is text.
        """
        found: dict[str, str | None] = {}
        number = 0
        for row in self.rows():
            for name, value in row.values.items():
                found[name] = _wider(found.get(name), _type(value))
            number += 1
        types = {name: kind or _TEXT for name, kind in found.items()}
        if self.suffix == ".parquet":
            types = {name: kind for file in self.files for name, kind in parquet_types(file).items()}
        return Survey(number, types, {file.name: sha256(file) for file in self.files})


def _files(path: Path) -> list[Path]:
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _READERS)
    else:
        raise BatchError(f"{path} does not exist; give a file or a folder of this machine, s3://… or gs://…")
    suffixes = {file.suffix for file in files}
    if len(suffixes) != 1 or not suffixes <= _READERS.keys():
        found = ", ".join(sorted(suffixes)) or "no file of these formats"
        raise BatchError(f"{path}: found {found}; give files of one format: {', '.join(_READERS)}")
    return files


def _read_jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse_line(line, f"{path.name}:{number}")


def _parse_line(line: bytes, place: str) -> Record:
    try:
        values = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return {}, f"{place}: not JSON: {error}"
    if not isinstance(values, dict):
        return {}, f"{place}: the line is a {type(values).__name__}, wanted a JSON object"
    return values, None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _read_csv(path: Path) -> Iterator[Record]:
    csv.field_size_limit(_LARGEST_FIELD)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if len(set(header)) != len(header) or "" in header:
            raise BatchError(f"{path}: the first line must name every column once; it has {header}")
        while True:
            try:
                fields = next(reader, None)
            except csv.Error as error:
                yield {}, f"{path.name}:{reader.line_num}: not CSV: {error}"
                continue
            if fields is None:
                return
            if fields:  # an empty line gives none
                yield _parse_fields(header, fields, f"{path.name}:{reader.line_num}")


def _parse_fields(header: list[str], fields: list[str], place: str) -> Record:
    if len(fields) != len(header):
        return {}, f"{place}: {len(fields)} fields, and the first line names {len(header)}"
    try:
        "".join(fields).encode()
    except UnicodeEncodeError:
        return {}, f"{place}: not UTF-8"
    return dict(zip(header, fields, strict=True)), None


def _read_parquet(path: Path) -> Iterator[Record]:
    return ((values, None) for values in parquet_rows(path))


_READERS: Final[dict[str, Callable[[Path], Iterator[Record]]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
ENDINGS: Final = tuple(_READERS)
