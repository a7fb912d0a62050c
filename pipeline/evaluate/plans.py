"""What is asked of which model on which engine, and how its answers are scored."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.evaluate.answering import CaseAnswer, ask_model
from pipeline.evaluate.task_folder import task_folder
from serving.config import Settings
from tasks.evaluation.cases import Case, Evaluation, Score
from tasks.task import TASK_FILE, create_evaluation

_NAME: Final = "adapter"  # in the list; a folder's own name may be none that a list can have
_ANY_RANK: Final = 1 << 16


@dataclass(frozen=True)
class Plan:
    """An evaluation that can be run.

    Args:
        refused: a message for each line that cannot be used.
        settings: what is asked and how, for the result file.
        ask: yields answers to some cases, in the order in which they finish.
    """

    evaluation: Evaluation
    cases: Sequence[Case]
    refused: Sequence[str]
    settings: Mapping[str, Any]
    ask: Callable[[Sequence[Case]], Iterator[CaseAnswer]]

    def score(self, answers: Mapping[int, CaseAnswer]) -> Iterator[Score]:
        """The scores of all cases in their order; `answers` are by the line of their case."""
        for case in self.cases:
            answer = answers[case.line]
            yield self.evaluation.score(case, answer.text, answer.error)


def engine_plan(
    data: Path,
    limit: int | None,
    options: Settings,
    grammar: bool,
    task: Path | None = None,
    adapter: Path | None = None,
) -> Plan:
    """Evaluate a model on an engine.

    Args:
        data: JSONL of cases, in the format of the task.
        limit: only the first cases.
        grammar: whether answers are constrained.
        task: a task file to use instead of the checkpoint's own, or the adapter's.
        adapter: folder of an adapter that is asked on demand; None for the checkpoint alone.

    Raises:
        CaseFileError: the cases cannot be used.
        TaskFileError: the task file is wrong.
    """
    weights = options.weights_dir
    if task is None and adapter is not None and (adapter / TASK_FILE).is_file():
        task = adapter / TASK_FILE
    with task_folder(weights, task) as folder:
        evaluation = create_evaluation(folder)
    settings = {"engine": options.engine, "weights": weights.name, "task": evaluation.name, "grammar": grammar}
    settings |= {} if adapter is None else {"adapter": adapter.name}

    def ask(cases: Sequence[Case]) -> Iterator[CaseAnswer]:
        # An adapter's task file goes with its list; the checkpoint keeps its own.
        with (
            task_folder(weights, task if adapter is None else None) as folder,
            on_demand(options.model_copy(update={"weights_dir": folder}), adapter, task) as (own, named),
        ):
            yield from ask_model(own, cases, {**evaluation.usual_inputs, **named}, use_grammar=grammar)

    return Plan(evaluation, *evaluation.read_cases(data, limit), settings, ask)


@contextmanager
def on_demand(
    settings: Settings, adapter: Path | None, task: Path | None = None
) -> Iterator[tuple[Settings, Mapping[str, str]]]:
    """Settings with which a model has the adapter, while the context lasts, and the inputs that name it.

    Args:
        adapter: folder of the adapter; None for the model alone, with no such input.
        task: a task file whose folder has what the adapter's prompts are made from; None for the adapter's own folder.
    """
    if adapter is None:
        yield settings, {}
        return
    with tempfile.TemporaryDirectory() as folder:
        entry = {"name": _NAME, "source": str(adapter.resolve()), "max_rank": _ANY_RANK}
        entry["task"] = str((adapter if task is None else task.parent).resolve())
        path = Path(folder) / "adapters.yaml"
        path.write_text(json.dumps({"adapters": [entry]}), "utf-8")
        # What it is to answer like is found out here.
        yield settings.model_copy(update={"adapters": path, "adapter_golden": False}), {"adapter": _NAME}
