"""What scripts/improve takes: accepted corrections and examples of the plain model, from either kind of file."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.corrections.accepted import accepted
from gateway.corrections.correction import Kind, State
from gateway.corrections.correction_file import CorrectionFile
from gateway.corrections.lines import LineError, read_lines

LINES = [
    {"input": {"text": "a"}, "output": "A"},
    {"input": {"text": "b"}, "output": "B", "state": "proposed"},
    {"input": {"text": "c"}, "output": "C", "kind": "example", "state": "accepted"},
    {"input": {"text": "d"}, "kind": "report", "state": "accepted"},
    {"input": {"text": "e", "adapter": "x"}, "output": "E", "state": "accepted"},
    {"input": {"text": "f"}, "output": {"city": "F"}, "state": "rejected"},
]


def test_lines_without_a_state_are_accepted_and_others_as_they_say(tmp_path: Path) -> None:
    path = tmp_path / "corrections.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    assert [(one.wanted, one.kind) for one in accepted(path)] == [("A", Kind.CORRECTION), ("C", Kind.EXAMPLE)]
    assert [one.wanted for one in accepted(path, "x")] == ["E"]


@pytest.mark.parametrize("name", ["corrections.sqlite", "predictions.sqlite"])
def test_a_gateway_s_file_or_the_one_beside_it_is_read(tmp_path: Path, name: str) -> None:
    with closing(CorrectionFile(tmp_path / "corrections.sqlite")) as file:
        for one in read_lines(map(json.dumps, LINES)):
            file.add(replace(one, state=State.ACCEPTED) if one.wanted == "A" else one)
    if name.startswith("predictions"):
        (tmp_path / name).write_bytes(b"SQLite format 3\0")
    assert [one.wanted for one in accepted(tmp_path / name)] == ["A", "C"]


def test_without_corrections_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "predictions.sqlite").write_bytes(b"SQLite format 3\0")
    with pytest.raises(LineError, match="nobody has corrected yet"):
        list(accepted(tmp_path / "predictions.sqlite"))
