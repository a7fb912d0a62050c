"""Save answers during a run, as JSON lines beside the result file, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from pipeline.evaluate.answering import Answer


class AnswerFile:
    """The answers so far.

    Args:
        results: the result file; without one, answers are only in memory.
        resume: whether to keep the answers of an earlier run; otherwise they are deleted.
    """

    def __init__(self, results: Path | None, resume: bool) -> None:
        self.answers: dict[int, Answer] = {}
        self._path = results and results.with_name(results.name + ".answers.jsonl")
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            self._path.unlink(missing_ok=True)
        elif self._path.is_file():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                answer = Answer(**json.loads(line))
                self.answers[answer.line] = answer

    def add(self, answer: Answer) -> None:
        """Add an answer."""
        self.answers[answer.line] = answer
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")

    def remove(self) -> None:
        """Delete the file, after the results have been written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
