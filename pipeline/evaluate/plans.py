"""The evaluations of the different tasks: how to read cases, get answers, score and summarize them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pipeline.evaluate.acceptance import (
    AcceptanceCase,
    AcceptanceScore,
    read_acceptance_cases,
    score_acceptance,
    summarize_acceptance,
)
from pipeline.evaluate.answering import Answer, Numbered, ask_model
from pipeline.evaluate.cases import Case, read_cases
from pipeline.evaluate.results import summarize
from pipeline.evaluate.run import score_all
from pipeline.evaluate.scoring import Score
from pipeline.evaluate.task_cases import TaskCase, read_task_cases
from pipeline.evaluate.task_folder import task_folder
from pipeline.evaluate.task_kinds import task_kind
from pipeline.evaluate.task_results import summarize_task
from pipeline.evaluate.task_scoring import TaskScore, score_task_answers
from serving.config import Settings

_REPEATABLE: Final = {"temperature": 0}  # where a case does not say: each token is the likeliest one
CaseT = TypeVar("CaseT", bound=Numbered)
ScoreT = TypeVar("ScoreT")


@dataclass(frozen=True)
class Plan(Generic[CaseT, ScoreT]):
    """An evaluation that can be run.

    Args:
        cases: all cases.
        refused: a message for each line that cannot be used.
        settings: of the engine, for the result file.
        ask: yields answers to some cases, in the order in which they finish.
        score: yields scores in the order of the cases.
        summarize: makes the result file's content from scores and a description of the run.
    """

    cases: Sequence[CaseT]
    refused: Sequence[str]
    settings: Mapping[str, Any]
    ask: Callable[[Sequence[CaseT]], Iterator[Answer]]
    score: Callable[[Sequence[CaseT], Mapping[int, Answer]], Iterator[ScoreT]]
    summarize: Callable[[Sequence[ScoreT], dict[str, Any]], dict[str, Any]]


def honeycomb_plan(data: Path, limit: int | None, options: Settings, grammar: bool) -> Plan[Case, Score]:
    """The Honeycomb task of a checkpoint, on an engine."""
    settings = {"engine": options.engine, "weights": options.weights_dir.name, "grammar": grammar}

    def ask(cases: Sequence[Case]) -> Iterator[Answer]:
        return ask_model(options, cases, _honeycomb_inputs, use_grammar=grammar)

    return Plan(*read_cases(data, limit), settings, ask, score_all, summarize)


def acceptance_plan(
    data: Path, limit: int | None, options: Settings, grammar: bool
) -> Plan[AcceptanceCase, AcceptanceScore]:
    """The Honeycomb task on an engine, for a file with all queries that an expert accepts."""
    settings = {"engine": options.engine, "weights": options.weights_dir.name, "grammar": grammar}

    def ask(cases: Sequence[AcceptanceCase]) -> Iterator[Answer]:
        return ask_model(options, cases, _honeycomb_inputs, use_grammar=grammar)

    return Plan(*read_acceptance_cases(data, limit), settings, ask, score_acceptance, summarize_acceptance)


def adapter_plan(data: Path, limit: int | None, adapter: Path, base: Path) -> Plan[Case, Score]:
    """A Honeycomb adapter on its base, without an engine."""
    settings = {"adapter": adapter.name, "base": base.name, "grammar": False}

    def ask(cases: Sequence[Case]) -> Iterator[Answer]:
        from pipeline.evaluate.adapter_source import adapter_answers  # torch: seconds, and only needed here

        return adapter_answers(base, adapter, cases)

    return Plan(*read_cases(data, limit), settings, ask, score_all, summarize)


def task_plan(
    data: Path, limit: int | None, options: Settings, grammar: bool, task_file: Path | None
) -> Plan[TaskCase, TaskScore]:
    """A schema or chat task on an engine.

    Args:
        data: JSONL of cases.
        limit: only the first cases.
        options: of the engine.
        grammar: whether answers are constrained.
        task_file: a task file to use instead of the checkpoint's own.
    """
    weights = options.weights_dir
    with task_folder(weights, task_file) as folder:
        kind = task_kind(folder)
    settings = {"engine": options.engine, "weights": weights.name, "task": kind.name, "grammar": grammar}

    def ask(cases: Sequence[TaskCase]) -> Iterator[Answer]:
        with task_folder(weights, task_file) as folder:
            own = options.model_copy(update={"weights_dir": folder})
            yield from ask_model(own, cases, lambda case: {**_REPEATABLE, **case.inputs}, use_grammar=grammar)

    return Plan(*read_task_cases(data, kind, limit), settings, ask, score_task_answers, summarize_task)


def _honeycomb_inputs(case: Case | AcceptanceCase) -> dict[str, Any]:
    return {"nlq": case.nlq, "cols": json.dumps(case.columns, ensure_ascii=False)}
