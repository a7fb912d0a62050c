"""Writes what is trained on and what is asked: learned and held-out corrections, replayed and old examples."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pipeline.evaluate.answering import AnswerFile, ask_model
from pipeline.evaluate.plans import on_demand
from pipeline.improve.families import held_out
from pipeline.improve.lines import Correction, Line, as_lines, read_lines, write_lines
from pipeline.train.kept import Kept
from pipeline.train.split import text_hash
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from tasks.evaluation.cases import Case
from tasks.task import create_evaluation, task_name

FEWEST: Final = 10  # new corrections; with fewer, what is measured on those held out says nothing
_FEW: Final = 30  # with fewer, the user is warned
LEARNED: Final = "corrections.jsonl"  # in the kept data: what an earlier version has learned
HELD_OUT: Final = "held-out corrections"
OLD: Final = "old examples"
EXAMPLES: Final = "examples of the playground"
PEOPLE: Final = "people's questions"
TIMES: Final = 4  # that each learned correction is in the training data
_REPLAYED: Final = 10  # old examples for each learned correction, or runs of them for each run, at most
_HONEYCOMB: Final = 8, 8  # both numbers for Honeycomb, the only task where they were measured (docs/improve.md)
_RUN: Final = 8  # examples that begin alike: as many as scripts/train_adapter computes together
_OLD: Final = 600  # old examples that are asked, at most
_VALIDATION: Final = 128


@dataclass(frozen=True, slots=True)
class Data:
    """What was written.

    Args:
        folder: of train.jsonl and validation.jsonl for scripts/train_adapter, and corrections.jsonl.
        questions: what each candidate is asked, apart from people's questions.
        sets: the lines of `questions` by what they are.
        drafts: what the draft model learns.
        learned: the number of learned corrections.
        replayed: the number of replayed examples.
        in_runs: whether corrections come in runs that begin alike, more than four on average, such as questions about
            one list of columns; then old examples are replayed in runs too.
    """

    folder: Path
    questions: Path
    sets: Mapping[str, Sequence[int]]
    drafts: Path
    learned: int
    replayed: int
    in_runs: bool


def write_data(
    work: Path,
    weights: Path,
    kept: Kept,
    corrections: Sequence[Correction],
    replay: Path | None,
    say: Callable[[str], None],
    adapter: Path | None = None,
) -> Data:
    """Write all files below `work`. The same corrections and files give the same bytes.

    Args:
        weights: folder of the current version, which answers inputs of `replay` that have no answers; with an adapter,
            that of its base with the adapter's task file.
        kept: what it was made from.
        corrections: that were accepted.
        replay: cases in place of the kept training data; lines may lack answers.
        say: is told what was done, a sentence at a time.
        adapter: folder of the adapter on demand that answers in its place; None for none.

    Raises:
        CheckpointError: there are too few corrections, or nothing to replay.
        TaskError: a file or the task file is wrong.
    """
    new = _usable(
        work / "new.jsonl", weights, as_lines((c for c in corrections if not c.is_example), weights, say), say
    )
    examples = as_lines((one for one in corrections if one.is_example), weights, lambda _: None)
    learned_before = _read(kept.data, LEARNED)
    known = {line.words for line in learned_before}
    lines = list({line.words: line for line in (*learned_before, *new)}.values())
    if (count := sum(line.words not in known for line in new)) < FEWEST:
        raise CheckpointError(
            f"{count} accepted corrections can be used that no version has learned; {FEWEST} are needed, and {_FEW} or "
            "more are better. Accept more in the playground, or add them: scripts/corrections add, import"
        )
    is_held_out = held_out([line.asked for line in lines], [line.words in known for line in lines])
    learned = [line for line, is_out in zip(lines, is_held_out, strict=True) if not is_out]
    kept_apart = [line for line, is_out in zip(lines, is_held_out, strict=True) if is_out]
    if not kept_apart or not learned:
        raise CheckpointError(
            "no correction can be held out, because their inputs are too much alike or were all learned by an earlier "
            "version; correct answers to other inputs"
        )
    times, replayed_each = _HONEYCOMB if task_name(weights) == "honeycomb" else (TIMES, _REPLAYED)
    taken = {line.words for line in (*lines, *examples)}
    runs = sum(1 for _ in _runs(sorted(learned, key=lambda line: line.asked), _RUN))
    in_runs = 2 * len(learned) > _RUN * runs
    run_length, count = (_RUN, runs) if in_runs else (1, len(learned))
    count *= replayed_each
    replayed, old = _replayed_and_old(work, weights, adapter, kept, replay, taken, count, run_length)
    data = work / "data"
    write_lines(data / LEARNED, learned)
    write_lines(data / "train.jsonl", _shuffled([*learned * times, *replayed]))
    write_lines(data / "validation.jsonl", [*kept_apart, *old][:_VALIDATION])
    write_lines(work / "drafts.jsonl", _shuffled([*learned, *replayed]))
    sets = {HELD_OUT: kept_apart, OLD: old, EXAMPLES: examples}
    write_lines(work / "questions.jsonl", chain.from_iterable(sets.values()))
    say(
        f"{len(lines)} corrections: {len(learned)} are learned, {times} times each, with {len(replayed):,} replayed "
        f"examples; {len(kept_apart)} are held out. {len(old):,} old examples are asked too."
    )
    if count < _FEW:
        say("That is few: the figures of the held-out corrections are rough, and the gain may be chance.")
    files = work / "questions.jsonl", _numbered(sets), work / "drafts.jsonl"
    return Data(data, *files, len(learned), len(replayed), in_runs)


def _usable(path: Path, weights: Path, lines: Sequence[Line], say: Callable[[str], None]) -> list[Line]:
    """The lines whose answers the task's evaluation takes."""
    if not lines:
        return []
    write_lines(path, lines)
    cases, refused = create_evaluation(weights).read_cases(path)
    for message in refused:
        say(f"Left out: {message}")
    return [lines[case.line - 1] for case in cases]


def _replayed_and_old(
    work: Path,
    weights: Path,
    adapter: Path | None,
    kept: Kept,
    replay: Path | None,
    taken: Collection[int],
    count: int,
    run_length: int,
) -> tuple[list[Line], list[Line]]:
    """Examples to learn again, at most `count` runs of them, and others to ask; none with an input that is `taken`."""
    given = None if replay is None else _with_answers(work, weights, adapter, replay)
    if given is None and kept.data is None:
        raise CheckpointError(
            "there is no training data to replay, without which a model forgets: give --replay with JSONL of inputs, "
            "which the current version answers if the lines have no answers; for the default models, "
            "scripts/dev/make_data writes build/data"
        )
    held_back: Iterable[Line] = ()
    if kept.data is not None:
        parts = [kept.data / "validation.jsonl", *sorted(kept.data.glob("test*.jsonl"))]
        held_back = chain.from_iterable(read_lines(path) for path in parts if path.is_file())
    elif given is not None:  # a quarter is asked and not learned
        free = _draw(given, taken, len(given))
        held_back, given = free[: len(free) // 4], free[len(free) // 4 :]
    old = _draw(held_back, taken, _OLD)
    source = given if given is not None else _read(kept.data, "train.jsonl")
    apart = {*taken, *(line.words for line in old)}
    runs = _runs((line for line in source if line.words not in apart), run_length)
    drawn = heapq.nsmallest(count, runs, key=lambda run: run[0].words)
    replayed = list(chain.from_iterable(drawn))
    if not old or not replayed:
        raise CheckpointError("no old example is left to replay and to ask; give --replay with more inputs")
    return replayed, old


def _draw(lines: Iterable[Line], taken: Collection[int], count: int) -> list[Line]:
    """At most `count` of the lines in random order, which depends on the lines alone."""
    return heapq.nsmallest(count, (line for line in lines if line.words not in taken), key=lambda one: one.words)


def _runs(lines: Iterable[Line], longest: int) -> Iterator[list[Line]]:
    """Lines in runs of neighbours that share the first half of their text, which training then computes once."""
    run: list[Line] = []
    for line in lines:
        half = (len(line.asked) + 1) // 2
        if run and (len(run) == longest or run[0].asked[:half] != line.asked[:half]):
            yield run
            run = []
        run.append(line)
    if run:
        yield run


def _with_answers(work: Path, weights: Path, adapter: Path | None, replay: Path) -> list[Line]:
    """The lines of a file; those without an answer get that of the current version, asked once and kept in `work`."""
    lines = list(read_lines(replay))
    records = [json.loads(line.text) for line in lines]
    asked = {number: record["input"] for number, record in enumerate(records) if _lacks_answer(record)}
    if not asked:
        return lines
    evaluation = create_evaluation(weights)
    kept = AnswerFile(work / "replay.json", resume=True)
    cases = [Case(number, _inputs(given, evaluation.only_input), None) for number, given in asked.items()]
    missing = [case for case in cases if case.line not in kept.answers]
    if missing:
        with on_demand(Settings(weights_dir=weights, max_num_seqs=16), adapter) as (settings, named):
            for answer in ask_model(settings, missing, {**evaluation.usual_inputs, **named}, use_grammar=True):
                kept.add(answer)
    for number, given in asked.items():
        if kept.answers[number].error is None:
            answered = {"input": given, "output": kept.answers[number].text}
            lines[number] = replace(lines[number], text=json.dumps(answered, ensure_ascii=False))
    return [line for number, line in enumerate(lines) if number not in asked or kept.answers[number].error is None]


def _lacks_answer(record: Mapping[str, Any]) -> bool:
    return "input" in record and record.get("output") is None


def _inputs(given: Any, only_input: str | None) -> Mapping[str, Any]:
    return {only_input: given} if isinstance(given, str) and only_input else dict(given)


def _read(folder: Path | None, name: str) -> list[Line]:
    return list(read_lines(folder / name)) if folder is not None and (folder / name).is_file() else []


def _shuffled(lines: Sequence[Line]) -> list[Line]:
    return [line for _, line in sorted(enumerate(lines), key=lambda one: text_hash(f"{one[0]} {one[1].text}"))]


def _numbered(sets: Mapping[str, Sequence[Line]]) -> dict[str, list[int]]:
    """The numbers of the lines of each set, in a file that has one set after another."""
    found, first = dict[str, list[int]](), 1
    for name, lines in sets.items():
        if lines:
            found[name] = list(range(first, first + len(lines)))
        first += len(lines)
    return found


def kept_data(data: Data, kept: Kept, folder: Path) -> Path:
    """The data of the new version, for its own improvement: the old one's, with the corrections that it has learned."""
    parts = sorted(kept.data.glob("*")) if kept.data is not None else ()
    folder.mkdir(parents=True, exist_ok=True)
    for path in parts:
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    if kept.data is None:
        (folder / "train.jsonl").write_bytes(data.drafts.read_bytes())
        questions = data.questions.read_text("utf-8").splitlines(keepends=True)
        (folder / "validation.jsonl").write_text("".join(questions[n - 1] for n in data.sets[OLD]), encoding="utf-8")
    (folder / LEARNED).write_bytes((data.folder / LEARNED).read_bytes())
    return folder
