"""Have a checkpoint or an adapter answer inputs, to learn from its answers and to count its passes."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

from pipeline.in_flight import blocking, in_flight
from pipeline.train.errors import TrainingError
from serving.adapters.adapter_tasks import adapter_tasks
from serving.adapters.registry import AdapterEntry, KnownAdapters
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.constraints import Constraint
from serving.engine import Engine, create_engine
from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams
from serving.weights.draft_weights import DRAFT_MODEL, MAX_TOKENS
from tasks.errors import TaskError
from tasks.evaluation.cases import Evaluation
from tasks.task import TASK_FILE, Prompt, Task, create_evaluation, create_task

_REPEATABLE: Final = {"temperature": 0}
_ANY_RANK, _ANY_LENGTH = 1 << 16, 1 << 30


@dataclass(frozen=True, slots=True)
class WrittenPrompt:
    """A prompt that no task has made."""

    token_ids: tuple[int, ...]
    max_tokens: int
    constraint: Constraint | None = None


Inputs = Mapping[str, Any] | WrittenPrompt


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one input.

    Args:
        prompt: token ids.
        answer: token ids without the end token; at most `MAX_TOKENS`, which is all that a draft model reads.
        passes: of the model.
        seconds: since the engine accepted the request.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    passes: int
    seconds: float


class Drafted:
    """What gets a draft model: a checkpoint, or an adapter that is served on demand.

    Args:
        weights: folder of the checkpoint.
        adapter: folder of the adapter; None for the checkpoint itself.
    """

    def __init__(self, weights: Path, adapter: Path | None = None) -> None:
        self.weights, self.adapter = weights, adapter
        self.folder = weights if adapter is None else adapter  # where its draft model is
        self.name = None if adapter is None else adapter.resolve().name  # of the adapter, in requests
        entries: dict[str, AdapterEntry] = {}
        if adapter is not None and self.name is not None:
            entries[self.name] = AdapterEntry(self.name, adapter, task=adapter, max_rank=_ANY_RANK)
        # Texts of any length can be read, because what is too long is left out.
        self.checkpoint = Checkpoint(weights, max_model_len=_ANY_LENGTH, adapters=KnownAdapters(entries))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its prompts."""
        return self.checkpoint.adapter_tokenizers.get(self.name or "", self.checkpoint.tokenizer)

    def create_task(self) -> Task:
        """The task that makes its prompts.

        Raises:
            TrainingError, TaskError: it cannot be used.
        """
        made = self.checkpoint
        if self.name is None:
            return create_task(self.weights, made.tokenizer)
        return adapter_tasks(made.adapters, self.weights, made.tokenizer, made.adapter_tokenizers)[self.name]

    def create_evaluation(self) -> Evaluation:
        """How its cases are read."""
        return create_evaluation(self.folder if (self.folder / TASK_FILE).is_file() else self.weights)


def prepared(task: Task, inputs: Mapping[str, Any]) -> Prompt:
    """How the model is asked; where the inputs do not say otherwise, each token is the likeliest one."""
    return task.prepare({**_REPEATABLE, **inputs})


def ask(
    drafted: Drafted,
    task: Task,
    inputs: Sequence[Inputs],
    *,
    concurrency: int,
    title: str,
    minutes: float = math.inf,
) -> list[Reply | None]:
    """Answer all inputs under the task's constraints, with a progress bar; None where an input is refused.

    Args:
        drafted: the checkpoint or adapter; its draft model is used if there is one.
        inputs: of calls, by the names of predict's parameters; or prompts.
        concurrency: requests in flight.
        minutes: after which no input is begun any more; theirs are None.

    Raises:
        TrainingError: all inputs are refused; the message has the reason of the first.
    """
    settings = Settings(engine="paged", weights_dir=drafted.weights, speculation="auto", max_num_seqs=concurrency)
    engine, end = create_engine(settings, drafted.checkpoint), time.monotonic() + 60 * minutes

    async def answer(index: int) -> tuple[int, Reply | Exception]:
        if time.monotonic() > end:
            return index, TimeoutError(f"the {minutes:g} minutes are over")
        try:
            return index, await _ask(engine, task, str(index), inputs[index], drafted.name)
        except (InvalidRequestError, TaskError) as error:
            return index, error

    try:
        replies = blocking(in_flight(answer, range(len(inputs)), concurrency))
        found = dict(track(replies, title, total=len(inputs), console=Console(stderr=True)))
    finally:
        engine.close()
    refused = [found[index] for index in sorted(found) if isinstance(found[index], Exception)]
    if len(refused) == len(inputs):
        raise TrainingError(f"no input can be answered: {refused[0] if refused else 'there is none'}")
    return [reply if isinstance(reply := found[index], Reply) else None for index in range(len(inputs))]


async def _ask(engine: Engine, task: Task, name: str, inputs: Inputs, adapter: str | None) -> Reply:
    if isinstance(inputs, WrittenPrompt):
        sampling = SamplingParams(max_tokens=inputs.max_tokens)
        request = GenerationRequest(name, inputs.token_ids, sampling, inputs.constraint, adapter=adapter)
    else:
        prompt = await asyncio.to_thread(prepared, task, inputs)
        sampling = replace(prompt.sampling, max_tokens=min(prompt.sampling.max_tokens, MAX_TOKENS))
        request = GenerationRequest(name, prompt.token_ids, sampling, prompt.constraint, adapter=adapter)
    answer: list[int] = []
    passes, seconds = 0, 0.0
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            answer += output.token_ids
            if output.metrics is not None:
                passes, seconds = output.metrics.model_passes, output.metrics.total_time
    return Reply(request.prompt_token_ids, tuple(answer), passes, seconds)


@contextmanager
def with_draft_model(drafted: Drafted, model: Path | None) -> Iterator[Drafted]:
    """The same in a folder of links, with this draft model in place of its own; None for none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, drafted.folder.resolve().name)  # the adapter's name
        folder.mkdir()
        files = {path.name: path for path in drafted.folder.iterdir() if path.name != DRAFT_MODEL}
        for file, path in files.items() if model is None else {**files, DRAFT_MODEL: model}.items():
            (folder / file).symlink_to(path.resolve())
        yield Drafted(folder) if drafted.adapter is None else Drafted(drafted.weights, folder)
