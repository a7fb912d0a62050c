"""Reading and writing tables: every row comes back, in order, whatever is wrong with some of them."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from pipeline.batch.errors import BatchError
from pipeline.batch.output import Output
from pipeline.batch.rows import RowAnswer
from pipeline.batch.table import Table

VALUES = [
    {"text": "2024-01-01", "n": 1, "ok": True, "list": ["a", {"b": 1}], "mixed": 1},
    {"text": 'a "quoted"\nline, é 🙂', "n": 2.5, "ok": None, "list": [], "mixed": "x"},
    {"text": "", "n": None, "ok": False},
]
ADDED = ("answer", "answer_error", "answer_input_tokens", "answer_output_tokens")


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answered(table: Table, output: Path) -> None:
    Output(output, table.survey().types, "answer").write(
        (row.values, RowAnswer(row.number, f"answer {row.number}", row.problem, 3, 4)) for row in table.rows()
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_values_survive(tmp_path: Path, suffix: str) -> None:
    """A text that looks like a date stays a text, and nested values stay what they are."""
    output = tmp_path / f"out{suffix}"
    answered(Table(lines(tmp_path / "in.jsonl", *VALUES)), output)
    found = [row.values for row in Table(output).rows()]
    assert [row["answer"] for row in found] == ["answer 0", "answer 1", "answer 2"]
    assert [row["answer_output_tokens"] for row in found] == [4, 4, 4]
    for given, row in zip(VALUES, found, strict=True):
        assert {name: row.get(name) for name in ("text", "n", "ok", "list", "mixed")} == {
            "list": None,
            "mixed": None,
            **given,
        }


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    duckdb.execute(
        "COPY (SELECT 1::TINYINT AS small, TIMESTAMP '2024-01-01 10:00:00' AS at, 1.50::DECIMAL(5,2) AS price, "
        f"{{'a': [1]}} AS nested, 'x' AS text) TO '{tmp_path / 'in.parquet'}' (FORMAT parquet)"
    )
    answered(Table(tmp_path / "in.parquet"), tmp_path / "out.parquet")
    query = "DESCRIBE SELECT * FROM read_parquet('{}')"
    before, after = (
        {name: kind for name, kind, *_ in duckdb.sql(query.format(tmp_path / name)).fetchall()}
        for name in ("in.parquet", "out.parquet")
    )
    assert after == before | dict.fromkeys(ADDED[:2], "VARCHAR") | dict.fromkeys(ADDED[2:], "BIGINT")


def test_csv_is_text_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes('\ufeffid,text\r\n007,"a ""b"",\nc"\r\n2024-01-01,é\r\n'.encode())
    table = Table(tmp_path / "in.csv")
    assert [row.values for row in table.rows()] == [
        {"id": "007", "text": 'a "b",\nc'},
        {"id": "2024-01-01", "text": "é"},
    ]
    answered(table, tmp_path / "out.csv")
    again = [row.values for row in Table(tmp_path / "out.csv").rows()]
    assert [{name: row[name] for name in ("id", "text")} for row in again] == [row.values for row in table.rows()]


def test_rows_that_cannot_be_read_stay_rows(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"a": 1}\n{"a": \n\n[1]\n{"a": "\xff"}\n{"a": NaN}\n{"a": 2}')
    rows = list(Table(tmp_path / "in.jsonl").rows())
    assert [row.number for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row.values for row in rows] == [{"a": 1}, {}, {}, {}, {}, {"a": 2}]
    assert [row.problem and row.problem.split(": ")[0] for row in rows] == [
        None,
        "in.jsonl:2",
        "in.jsonl:4",
        "in.jsonl:5",
        "in.jsonl:6",
        None,
    ]
    (tmp_path / "in.csv").write_bytes(b"a,b\n1,2\n1\n1,2,3\n\xff,2\n3,4\n")
    rows = list(Table(tmp_path / "in.csv").rows())
    assert [bool(row.problem) for row in rows] == [False, True, True, True, False]


def test_half_a_surrogate_pair_does_not_stop_the_output(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": "\\ud800"}\n')
    for suffix in (".jsonl", ".csv", ".parquet"):
        answered(Table(tmp_path / "in.jsonl"), tmp_path / f"out{suffix}")
    assert [row.values["a"] for row in Table(tmp_path / "out.jsonl").rows()] == ["\ud800"]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", {"a": 2}, {"c": 3})
    lines(tmp_path / "a.jsonl", {"a": 1})
    table = Table(tmp_path)
    assert [(row.number, row.values) for row in table.rows()] == [(0, {"a": 1}), (1, {"a": 2}), (2, {"c": 3})]
    survey = table.survey()
    assert (survey.num_rows, survey.types, set(survey.digests)) == (
        3,
        {"a": "BIGINT", "c": "BIGINT"},
        {"a.jsonl", "b.jsonl"},
    )
    (tmp_path / "c.csv").write_text("a\n1\n")
    with pytest.raises(BatchError, match="one format"):
        Table(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: Table(folder / "none.jsonl"), "does not exist"),
        (lambda folder: Table(lines(folder / "in.txt")), r"\.jsonl, \.csv, \.parquet"),
        (lambda folder: Output(folder / "out.xlsx", {}, "answer"), "unknown ending"),
        (lambda folder: Output(folder / "out.csv", {"a_error": "VARCHAR"}, "a"), "--answer"),
        (lambda folder: Table(_parquet_of_text(folder)).survey(), "in.parquet"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        make(tmp_path)


def _parquet_of_text(folder: Path) -> Path:
    (folder / "in.parquet").write_text("this is no Parquet")
    return folder / "in.parquet"
