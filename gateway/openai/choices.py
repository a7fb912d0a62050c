"""The predictions behind one request: started together, followed together, cancelled when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request

from gateway.cache.cache_use import CacheUse
from gateway.errors import InvalidInputError
from gateway.gateway import Gateway
from gateway.model_info import ModelInfo
from gateway.openai.finished_answers import Answer, read_answer
from gateway.openai.model_inputs import ModelInputs
from gateway.predictions import Prediction, new_id, now
from gateway.runs import Finished, LogText, OutputPiece, Run


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of one choice."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one choice."""

    index: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Choices:
    """Predictions that run, one for each choice.

    Args:
        runs: the predictions.
        inputs: those of each.
    """

    runs: Sequence[Run]
    inputs: Sequence[ModelInputs]

    async def answers(self) -> list[Answer]:
        """All answers, once all have ended.

        Raises:
            ApiError: one of them failed.
        """
        ended = [await run.finished() for run in self.runs]
        return [read_answer(prediction, inputs) for prediction, inputs in zip(ended, self.inputs, strict=True)]

    async def follow(self) -> AsyncIterator[Piece | Ended]:
        """The texts of all choices as they come, and the end of each.

        Raises:
            ApiError: one of them failed.
        """
        sources = [self._follow(index) for index in range(len(self.runs))]
        upcoming = {asyncio.ensure_future(anext(source, None)): source for source in sources}
        try:
            while upcoming:
                done, _ = await asyncio.wait(upcoming, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    source = upcoming.pop(task)
                    if (event := task.result()) is not None:
                        yield event
                        upcoming[asyncio.ensure_future(anext(source, None))] = source
        finally:
            for task in upcoming:
                task.cancel()

    async def _follow(self, index: int) -> AsyncIterator[Piece | Ended]:
        async for event in self.runs[index].follow():
            match event:
                case OutputPiece(value=value):
                    yield Piece(index, value if isinstance(value, str) else str(value))
                case Finished(prediction=prediction):
                    yield Ended(index, read_answer(prediction, self.inputs[index]))
                case LogText():
                    pass


@asynccontextmanager
async def run_choices(
    request: Request, gateway: Gateway, info: ModelInfo, inputs: Sequence[ModelInputs], n: int
) -> AsyncIterator[Choices]:
    """Start `n` predictions for each of the inputs. They are cancelled at the end and when the client disconnects.

    Raises:
        ApiError: a server refuses the inputs.
        TooManyPredictionsError: too many run or wait.
    """
    each = [one for one in inputs for _ in range(n)]
    runs: list[Run] = []

    def cancel() -> None:
        for run in runs:
            if not run.is_finished:
                gateway.runner.cancel(run.id)

    watching, cache_use = None, CacheUse.of(request.headers)
    try:
        for number, one in enumerate(each):
            runs.append(await _start(gateway, info, one, number % n, cache_use))
        watching = asyncio.create_task(_call_on_disconnect(request, cancel))
        yield Choices(runs, each)
    finally:
        if watching is not None:
            watching.cancel()
        cancel()


async def _start(gateway: Gateway, info: ModelInfo, inputs: ModelInputs, number: int, cache_use: CacheUse) -> Run:
    prediction = Prediction(
        id=new_id(),
        model=info.name,
        version=info.version,
        input=inputs.numbered(number),
        created_at=now(),
        weights_digest=gateway.settings.weights_digest,
    )
    try:
        return await gateway.runner.start(prediction, cache_use)
    except InvalidInputError as refusal:
        raise inputs.explain(refusal) from refusal


async def _call_on_disconnect(request: Request, call: Callable[[], None]) -> None:
    """The body has been read, so the next message is the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call()
