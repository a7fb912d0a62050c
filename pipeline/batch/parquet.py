"""Reads and writes Parquet with DuckDB, as JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.batch.errors import BatchError

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE: Final = 1_000
_LARGEST_ROW: Final = 1 << 28  # bytes of JSON; DuckDB's default is 16 MiB


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows in the order of the file. Times, decimals and bytes are as DuckDB writes them in JSON.

    Raises:
        BatchError: the file cannot be read, or DuckDB is not installed.
    """
    with _connect() as connection:
        found = _execute(connection, path, "SELECT to_json(t) FROM read_parquet(?) t")
        while texts := found.fetchmany(_ROWS_AT_ONCE):
            yield from (json.loads(text) for (text,) in texts)


def parquet_types(path: Path) -> dict[str, str]:
    """The types of columns, by DuckDB's names.

    Raises:
        BatchError: as `parquet_rows`.
    """
    with _connect() as connection:
        columns = _execute(connection, path, "DESCRIBE SELECT * FROM read_parquet(?)").fetchall()
    return {name: kind for name, kind, *_ in columns}


def write_parquet(lines: Path, types: Mapping[str, str], output: Path) -> None:
    """Convert a file of JSON lines.

    Args:
        lines: a JSON object a line; missing keys become null.
        types: DuckDB's type of each column of the output, in order.
        output: is overwritten.

    Raises:
        BatchError: a value does not have its column's type, or DuckDB is not installed.
    """
    columns = ", ".join(f"{_quoted(name)}: {_quoted(kind)}" for name, kind in types.items())
    source = f"read_json({_quoted(str(lines))}, format='newline_delimited', columns={{{columns}}}"
    with _connect() as connection:
        _execute(
            connection,
            output,
            f"COPY (SELECT * FROM {source}, maximum_object_size={_LARGEST_ROW})) "
            f"TO {_quoted(str(output))} (FORMAT parquet)",
        )


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise BatchError("Parquet needs the package duckdb; install it, or give JSONL or CSV") from error
    return duckdb.connect()


def _execute(connection: duckdb.DuckDBPyConnection, path: Path, query: str) -> duckdb.DuckDBPyConnection:
    import duckdb

    try:
        return connection.execute(query, [str(path)] if "?" in query else [])
    except duckdb.Error as error:
        raise BatchError(f"{path}: {error}") from error
