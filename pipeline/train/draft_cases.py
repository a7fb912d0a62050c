"""Read what a draft model is trained on: inputs of any task, with right answers or with those of the checkpoint."""

from __future__ import annotations

from array import array  # there may be 100,000 prompts
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pipeline.train.draft_answers import Drafted, Inputs, WrittenPrompt, ask, prepared
from pipeline.train.draft_predictions import has_texts, is_database, read_predictions, read_texts
from pipeline.train.errors import NoDraftsError, TrainingError
from pipeline.train.packing import common_prefix_length
from pipeline.weights.console import say
from serving.errors import InvalidRequestError
from serving.weights.draft_weights import MAX_TOKENS
from tasks.errors import TaskError
from tasks.evaluation.cases import Case
from tasks.task import ExampleTask, Task

_OWN_LIMIT: Final = 3_000  # inputs that a checkpoint answers unasked
AT_ONCE: Final = 32  # requests in flight
_ODD: Final = 20  # one of so many prompts may begin in another way
_HELD_OUT: Final = 10  # one of so many, where there is no validation file


class Answers(StrEnum):
    """Whose answers are learned."""

    AUTO = "auto"  # its own; those of the data for an `ExampleTask` that is no adapter's, and for over 3,000 inputs
    OWN = "own"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class DraftCase:
    """One input, and the answer to learn.

    Args:
        inputs: of a call, by the names of predict's parameters; or a prompt, where that is all that is known.
        prompt: token ids.
        answer: token ids without the end token.
        is_own: whether the checkpoint was asked for the answer.
    """

    inputs: Inputs
    prompt: Sequence[int]
    answer: Sequence[int]
    is_own: bool = False


class CaseReader:
    """Reads cases of the task of a checkpoint or an adapter."""

    def __init__(self, drafted: Drafted, task: Task, answers: Answers) -> None:
        self._drafted, self._task, self._answers = drafted, task, answers
        self._evaluation = drafted.create_evaluation()

    def read(self, data: Path) -> tuple[list[DraftCase], list[DraftCase]]:
        """The cases to learn from, and those held out.

        Args:
            data: a JSONL file of the task's cases or of {"prompt", "answer"} texts, a folder of train.jsonl and perhaps
                validation.jsonl, or the database of a gateway. Where there is one file, its last tenth, which is the
                newest, is held out.

        Raises:
            TrainingError: there are too few cases, or the checkpoint can answer none.
            NoDraftsError: all prompts are too long.
            CheckpointError, TaskError: a file or the task is wrong.
        """
        if is_database(data):
            found = [self._predictions(data)]
        elif data.is_file() and has_texts(data):
            found = [self._texts(data)]
        else:
            files = [data / "train.jsonl", data / "validation.jsonl"] if data.is_dir() else [data]
            found = self._cases([path for path in files if path.is_file()] or files[:1])
        if len(found) == 1:
            (cases,) = found
            count = -(-len(cases) // _HELD_OUT)
            found = [cases[:-count], cases[-count:]]
        if not all(found):
            raise TrainingError(f"{data}: too few examples; give at least 2, better 300 or more")
        return found[0], found[1]

    def _predictions(self, path: Path) -> list[DraftCase]:
        """Kept outputs are what the model wrote, except of an `ExampleTask`, which may have corrected them."""
        found, cases = read_predictions(path, self._drafted.name), []
        has_texts_of_model = self._answers is Answers.AUTO and not isinstance(self._task, ExampleTask)
        if not (has_texts_of_model or self._answers is Answers.GIVEN):
            return self._own([[inputs for inputs, _ in found[-_OWN_LIMIT:]]])[0]
        for inputs, text in found:
            with suppress(TaskError, InvalidRequestError):  # asked of another model that the gateway had
                prompt = self._task.prepare(inputs)
                answer = self._drafted.tokenizer.encode(text, add_bos=False)
                cases.append(DraftCase(inputs, array("i", prompt.token_ids), array("i", answer)))
        if refused := len(found) - len(cases):
            say(f"{refused:,} of {len(found):,} predictions have inputs that the task refuses, and are left out")
        return cases

    def _texts(self, path: Path) -> list[DraftCase]:
        found = read_texts(path, self._drafted.weights / "tokenizer.json")
        inputs = [WrittenPrompt(tuple(prompt), max(1, len(answer))) for prompt, answer in found]
        if self._answers is Answers.OWN:
            return self._own([inputs])[0]
        return [
            DraftCase(one, array("i", one.token_ids), answer) for one, (_, answer) in zip(inputs, found, strict=True)
        ]

    def _cases(self, files: Sequence[Path]) -> list[list[DraftCase]]:
        is_automatic = self._answers is Answers.AUTO
        has_written = isinstance(self._task, ExampleTask) and self._drafted.adapter is None
        if self._answers is Answers.GIVEN or (is_automatic and has_written):
            return [self._given(path) for path in files]
        inputs = [self._evaluation.read_inputs(path) for path in files]
        count = sum(map(len, inputs))
        if is_automatic and count > _OWN_LIMIT:
            say(f"{count:,} inputs: their given answers are learned; --answers own has the model answer them")
            return [self._given(path) for path in files]
        return self._own(inputs)

    def _own(self, inputs: Sequence[Sequence[Inputs]]) -> list[list[DraftCase]]:
        """Cases with the model's own answers, of several files at once; refused inputs are left out."""
        if not isinstance(self._task, ExampleTask):
            inputs = self._readable(inputs)
        everything = [one for file in inputs for one in file]
        replies = ask(self._drafted, self._task, everything, concurrency=AT_ONCE, title="Answering")
        if refused := replies.count(None):
            say(f"{refused:,} of {len(replies):,} inputs are refused by the task or the engine, and left out")
        waiting = iter(zip(everything, replies, strict=True))
        drawn = [[next(waiting) for _ in file] for file in inputs]
        return [
            [DraftCase(one, reply.prompt, reply.answer, is_own=True) for one, reply in file if reply] for file in drawn
        ]

    def _readable(self, inputs: Sequence[Sequence[Inputs]]) -> list[list[Inputs]]:
        """The inputs without those whose prompts no draft model reads: to answer them takes long, and for nothing.

        Raises:
            NoDraftsError: there is no other.
        """

        def prompt_of(one: Inputs) -> Sequence[int]:
            with suppress(TaskError, InvalidRequestError):  # refused when it is asked
                return one.token_ids if isinstance(one, WrittenPrompt) else prepared(self._task, one).token_ids
            return ()

        prompts = [[prompt_of(one) for one in file] for file in inputs]
        known = sorted(tuple(prompt) for file in prompts for prompt in file if prompt)
        few = len(known) // _ODD
        begin = common_prefix_length([known[few], known[-1 - few]]) if known else 0  # all between begin so
        most = begin + 2 * MAX_TOKENS  # as `split_prompt`, which counts the tokens of single words
        kept = [
            [one for one, prompt in zip(*file, strict=True) if len(prompt) <= most]
            for file in zip(inputs, prompts, strict=True)
        ]
        if not all(kept):
            raise NoDraftsError(f"a draft model reads {MAX_TOKENS} tokens of a request, and the inputs have more")
        if left_out := sum(map(len, inputs)) - sum(map(len, kept)):
            say(f"{left_out:,} inputs are not asked, because a draft model reads {MAX_TOKENS} tokens of a request")
        return kept

    def _given(self, path: Path) -> list[DraftCase]:
        if isinstance(self._task, ExampleTask):
            examples = self._task.read_examples(path)
            return [DraftCase(inputs, array("i", prompt), answer) for inputs, prompt, answer in examples]
        cases, refused = self._evaluation.read_cases(path)
        for message in refused:
            say(f"left out: {message}")
        return [self._with_reference(case) for case in cases]

    def _with_reference(self, case: Case) -> DraftCase:
        prompt = self._task.prepare(case.inputs)
        text = self._evaluation.reference_text(case, prompt.constraint)
        return DraftCase(case.inputs, prompt.token_ids, self._drafted.tokenizer.encode(text, add_bos=False))
