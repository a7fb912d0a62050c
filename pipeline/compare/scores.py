"""A task's scores of two checkpoints, on the same cases and in the way of scripts/evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pipeline.evaluate.plans import engine_plan
from pipeline.evaluate.results import compare, describe, measures_of, summarize
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from tasks.task import TASK_FILE

_CONCURRENCY: Final = 16


def task_file_of(before: Path, after: Path, given: Path | None) -> Path:
    """The task file to ask both checkpoints with: the given one, else that of the second, else of the first.

    Raises:
        CheckpointError: there is none.
    """
    for path in (given, after / TASK_FILE, before / TASK_FILE):
        if path is not None and (path.is_file() or path == given):
            return path
    raise CheckpointError(f"neither {before} nor {after} has a {TASK_FILE}; write one, or give --task")


def score_both(before: Path, after: Path, cases: Path, task_file: Path, limit: int) -> dict[str, Any]:
    """Answer and score the cases with both checkpoints on the paged engine.

    Returns:
        For each measure `before` and `after` as shares, `points` gained from first to second, and its 95 % interval.

    Raises:
        ServingError: a checkpoint cannot be served.
        TaskError: the cases cannot be used, or the task file is wrong.
    """
    first, second = (_results(folder, cases, task_file, limit) for folder in (before, after))
    changes = compare(first, second)
    return {
        "cases": first["n"],
        "measures": {
            name: {
                "before": first[name]["value"],
                "after": second[name]["value"],
                "points": 100 * changes[name]["difference"],
                "interval": [100 * changes[name]["low"], 100 * changes[name]["high"]],
            }
            for name in measures_of(first)
            if name in changes
        },
    }


def _results(folder: Path, cases: Path, task_file: Path, limit: int) -> dict[str, Any]:
    own = task_file.resolve() == (folder / TASK_FILE).resolve()
    options = Settings(engine="paged", weights_dir=folder, max_num_seqs=_CONCURRENCY)
    plan = engine_plan(cases, limit, options, grammar=True, task=None if own else task_file)
    answers = {answer.line: answer for answer in plan.ask(plan.cases)}
    return summarize(list(plan.score(answers)), describe(cases, len(plan.cases)))
