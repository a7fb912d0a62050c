"""A damaged journal costs the damaged answers only, and a full disk is said with its remedy."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from pipeline.batch.answer_journal import AnswerJournal
from pipeline.batch.errors import BatchError
from pipeline.batch.rows import RowAnswer

RUN = {"task": "schema"}


def with_answers(path: Path) -> list[bytes]:
    with AnswerJournal(path, RUN) as journal:
        for number in range(3):
            journal.add(RowAnswer(number, f"answer {number}"))
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "damaged", [b"{\x00\x00\x00}\n", b"[]\n", b'{"numb": 1}\n', b'{"number": "1", "answer": "a"}\n']
)
def test_a_damaged_answer_is_asked_again_and_the_others_stay(tmp_path, capsys, damaged):
    lines = with_answers(tmp_path / "progress")
    (tmp_path / "progress").write_bytes(b"".join([*lines[:2], damaged, lines[3]]))
    with AnswerJournal(tmp_path / "progress", RUN) as journal:
        assert [number for number in range(3) if number in journal] == [0, 2]
        journal.add(RowAnswer(1, "again"))
    with AnswerJournal(tmp_path / "progress", RUN) as journal:
        assert [journal.get(number).answer for number in range(3)] == ["answer 0", "again", "answer 2"]
    assert "an answer is damaged; its row is asked again" in capsys.readouterr().err


def test_a_damaged_first_line_is_refused_with_the_remedy(tmp_path):
    lines = with_answers(tmp_path / "progress")
    (tmp_path / "progress").write_bytes(b"".join([b"?" * 20 + b"\n", *lines[1:]]))
    with pytest.raises(
        BatchError, match=r"first line of .*progress is damaged; delete the file, or give another --out"
    ):
        AnswerJournal(tmp_path / "progress", RUN)


def test_a_full_disk_is_said_with_the_file_and_what_to_do(tmp_path):
    """The limit of a file's size stands for the disk."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with AnswerJournal(tmp_path / "progress", RUN) as journal:
            journal.add(RowAnswer(0, "x"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
            with pytest.raises(BatchError, match=r"progress cannot be written: .*make room.*continues after 1 answers"):
                journal.add(RowAnswer(1, "y" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    with AnswerJournal(tmp_path / "progress", RUN) as again:
        assert [number for number in range(2) if number in again] == [0]
