"""What the engines answered, compared.

Owns: counting answers that are not ours, and some of them in full. Knows nothing of speed.

    compare_answers(runs, batches)["vllm"]["other_query"]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from honeycomb.canonical import comparison_key
from honeycomb.errors import HoneycombError
from honeycomb.query import parse_query, read_answer
from scripts.benchmark.batches import Batches
from scripts.benchmark.measure import Run
from scripts.benchmark.peers import OURS
from scripts.benchmark.questions import Question
from scripts.benchmark.workloads import Workload

SHOWN = 5
_ASKED = (Workload.ONE_NEW, Workload.ONE_SEEN, Workload.LOAD_8, Workload.LOAD_32)


def compare_answers(
    runs: Sequence[Run], batches: Batches, engines: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """For each engine: answers, how many are valid queries, and against ours the same text or meaning."""
    ours = {_place(run): run for run in runs if run.engine == OURS and run.workload in _ASKED}
    found = {}
    for engine in engines:
        theirs = [run for run in runs if run.engine == engine and run.workload in _ASKED]
        if theirs:
            found[engine] = _compare(theirs, ours, batches)
    return found


def _compare(theirs: Sequence[Run], ours: dict[tuple[str, int], Run], batches: Batches) -> dict[str, Any]:
    counts = {"answers": 0, "valid": 0, "compared": 0, "same_text": 0, "same_query": 0, "other_query": 0}
    examples: list[dict[str, str]] = []
    for run in theirs:
        questions = batches.questions(Workload(run.workload), run.round, run.variant)
        mine = ours.get(_place(run))
        for i, (reply, question) in enumerate(zip(run.replies, questions, strict=True)):
            key = query_key(reply.text, question)
            counts["answers"] += 1
            counts["valid"] += key is not None
            if mine is None:
                continue
            own = mine.replies[i].text
            same = reply.text == own or (key is not None and key == query_key(own, question))
            counts["compared"] += 1
            counts["same_text"] += reply.text == own
            counts["same_query" if same else "other_query"] += 1
            if not same and len(examples) < SHOWN:
                examples.append({"nlq": question.nlq, "answer": reply.text, "ours": own})
    return {**counts, "examples": examples}


def query_key(text: str, question: Question) -> str | None:
    """What the answer means; None when it is no query over these columns."""
    try:
        return comparison_key(parse_query(read_answer(text, question.columns).text, question.columns))
    except HoneycombError:
        return None


def _place(run: Run) -> tuple[str, int]:
    return run.workload, run.round
