"""Compares the engines' answers with the paged engine's: how many differ, with examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lab.bench.asker import Asker
from lab.bench.batches import Batches
from lab.bench.measure import Run
from lab.bench.peers import OURS
from lab.bench.workloads import Workload

SHOWN = 5
_ASKED = (Workload.ONE_NEW, Workload.ONE_SEEN, Workload.LOAD_8, Workload.LOAD_32)


def compare_answers(
    runs: Sequence[Run], batches: Batches, asker: Asker, engines: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Counts of each engine's answers: all, valid ones, and those that equal the paged engine's text or query."""
    reference = {_place(run): run for run in runs if run.engine == OURS and run.workload in _ASKED}
    found = {}
    for engine in engines:
        measured = [run for run in runs if run.engine == engine and run.workload in _ASKED]
        if measured:
            found[engine] = _compare(measured, reference, batches, asker)
    return found


def _compare(
    measured: Sequence[Run], reference: dict[tuple[str, int], Run], batches: Batches, asker: Asker
) -> dict[str, Any]:
    counts = {"answers": 0, "valid": 0, "compared": 0, "same_text": 0, "same_query": 0, "other_query": 0}
    examples: list[dict[str, Any]] = []
    for run in measured:
        questions = batches.questions(Workload(run.workload), run.round, run.variant)
        expected = reference.get(_place(run))
        for i, (reply, question) in enumerate(zip(run.replies, questions, strict=True)):
            key = asker.meaning(question, reply)
            counts["answers"] += 1
            counts["valid"] += key is not None
            if expected is None:
                continue
            text = expected.replies[i].text
            same = reply.text == text or (key is not None and key == asker.meaning(question, expected.replies[i]))
            counts["compared"] += 1
            counts["same_text"] += reply.text == text
            counts["same_query" if same else "other_query"] += 1
            if not same and len(examples) < SHOWN:
                examples.append({"inputs": dict(question.inputs), "answer": reply.text, "ours": text})
    return {**counts, "examples": examples}


def _place(run: Run) -> tuple[str, int]:
    return run.workload, run.round
