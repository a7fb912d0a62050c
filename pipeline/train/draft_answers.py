"""Have a checkpoint answer inputs with its engine, to learn from its answers and to count its passes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pipeline.in_flight import in_flight
from pipeline.train.errors import AdapterError
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.errors import InvalidRequestError
from serving.types import GenerationRequest
from serving.weights.draft_weights import DRAFT_MODEL, MAX_TOKENS
from tasks.errors import TaskError
from tasks.task import Task

_REPEATABLE: Final = {"temperature": 0}  # where an input does not say: each token is the likeliest one

Inputs = Mapping[str, Any]


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


def ask(weights: Path, task: Task, inputs: Sequence[Inputs], *, concurrency: int, title: str) -> list[Reply | None]:
    """Answer all inputs under the task's constraints, with a progress bar; None where an input is refused.

    Args:
        weights: folder of the checkpoint; its draft model is used if there is one.
        task: of the checkpoint.
        inputs: of calls, by the names of predict's parameters.
        concurrency: requests in flight.
        title: of the progress bar.

    Raises:
        AdapterError: all inputs are refused; the message has the reason of the first.
    """
    settings = Settings(engine="paged", weights_dir=weights, speculation="auto", max_num_seqs=concurrency)
    engine = create_engine(settings)
    try:
        found = asyncio.run(_ask_all(engine, task, inputs, concurrency, title))
    finally:
        engine.close()
    refused = [one for one in found if isinstance(one, Exception)]
    if len(refused) == len(inputs):
        raise AdapterError(f"no input can be answered: {refused[0] if refused else 'there is none'}")
    return [None if isinstance(one, Exception) else one for one in found]


async def _ask_all(
    engine: Engine, task: Task, inputs: Sequence[Inputs], concurrency: int, title: str
) -> list[Reply | Exception]:
    async def answer(index: int) -> tuple[int, Reply | Exception]:
        try:
            return index, await _ask(engine, task, str(index), inputs[index])
        except (InvalidRequestError, TaskError) as error:
            return index, error

    found: dict[int, Reply | Exception] = {}
    with _bar(title, len(inputs)) as advance:
        async for index, reply in in_flight(answer, range(len(inputs)), concurrency):
            found[index] = reply
            advance()
    return [found[index] for index in range(len(inputs))]


async def _ask(engine: Engine, task: Task, name: str, inputs: Inputs) -> Reply:
    prompt = await asyncio.to_thread(task.prepare, {**_REPEATABLE, **inputs})
    sampling = replace(prompt.sampling, max_tokens=min(prompt.sampling.max_tokens, MAX_TOKENS))
    request = GenerationRequest(name, prompt.token_ids, sampling, prompt.constraint)
    answer: list[int] = []
    passes, seconds = 0, 0.0
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            answer += output.token_ids
            if output.metrics is not None:
                passes, seconds = output.metrics.model_passes, output.metrics.total_time
    return Reply(prompt.token_ids, tuple(answer), passes, seconds)


@contextmanager
def with_draft_model(weights: Path, model: Path | None) -> Iterator[Path]:
    """A folder with the files of a checkpoint and this draft model in place of its own; None for none."""
    with tempfile.TemporaryDirectory() as name:
        files = {path.name: path for path in weights.iterdir() if path.name != DRAFT_MODEL}
        for file, path in files.items() if model is None else {**files, DRAFT_MODEL: model}.items():
            Path(name, file).symlink_to(path.resolve())
        yield Path(name)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar; call it when one more is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda: progress.advance(bar)
