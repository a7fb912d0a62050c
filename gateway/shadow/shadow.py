"""Asks a candidate version a share of what callers ask, once they have their answers, and compares."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from gateway.cache.answer_cache import complete_inputs, is_from_cache, is_greedy
from gateway.corrections.correction import Kind
from gateway.corrections.correction_file import CorrectionFile
from gateway.errors import GatewayError
from gateway.pages.profile import profile_for
from gateway.predictions.live_prediction import LivePrediction
from gateway.predictions.prediction import Prediction, Status, new_id, now, output_text
from gateway.predictions.prediction_task import ask_apart
from gateway.predictions.store import INTERRUPTED
from gateway.settings import GatewaySettings
from gateway.shadow.pair_table import PairTable
from gateway.upstream.model_info import ModelInfo, ModelInfoReader
from gateway.upstream.model_server import ModelServer, Upstream
from gateway.upstream.pool import Pool, Turn

_log = logging.getLogger(__name__)
MAX_ASKED: Final = 8  # predictions of the candidate at a time; what comes beyond is dropped
MAX_SECONDS: Final = 60.0  # for an answer of the candidate, also for it to begin


class Outcome(StrEnum):
    """What became of one request for which the candidate was chosen."""

    SAME = "same"
    DIFFERENT = "different"  # another answer, or a failure of the model
    FAILED = "failed"  # the candidate refused the inputs, or broke off
    DROPPED = "dropped"  # it was away, had too much to do, or was too slow


class Shadow:
    """Follows predictions. Nobody waits for it, and what goes wrong in it is counted and logged.

    Args:
        candidate: the candidate's server, which is closed in the end.
        name: the name of the candidate.
        share: of the predictions, from 0 to 1.
        read_model: returns the schema and version that callers are served.
        count: is told each outcome.
        max_output_bytes: the limit of one answer.
        table: keeps the pairs; None where nothing is kept.
        corrections: has people's examples; None where nothing is kept.
        playground: the operator's file with examples.
    """

    def __init__(
        self,
        candidate: ModelServer,
        *,
        name: str,
        share: float,
        read_model: ModelInfoReader,
        count: Callable[[str], None],
        max_output_bytes: int,
        table: PairTable | None,
        corrections: CorrectionFile | None,
        playground: Path | None,
    ) -> None:
        self.name = name
        self.share = share
        self.table = table
        self.outcomes = Counter[Outcome]()
        self._pool = Pool([candidate])
        self._model = read_model
        self._count = count
        self._max_output_bytes = max_output_bytes
        self._corrections = corrections
        self._playground = playground
        self._num_asked = 0
        self._following = set[asyncio.Task[None]]()

    async def start(self) -> None:
        """Begin to watch the candidate."""
        await self._pool.start()

    async def close(self) -> None:
        """Ask nothing more; what the candidate still answers is cancelled."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._pool.close()

    def follow(self, live: LivePrediction) -> None:
        """Ask the candidate the same once a prediction has its answer, if it is one of the share."""
        if is_chosen(live.id, self.share):
            task = asyncio.create_task(self._shadow(live), name=f"shadow of {live.id}")
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    async def _shadow(self, live: LivePrediction) -> None:
        given = await live.answered()
        if given.status is not Status.SUCCEEDED or is_from_cache(given):
            return
        try:
            info = await self._model.read()
            inputs = complete_inputs(given.input, info.input_properties)
            if not is_greedy(inputs, info.input_properties):
                return  # two answers would differ by chance
            outcome = await self._compare(given, inputs, info)
        except Exception:  # nothing of a caller's depends on it
            _log.exception("the candidate's answer to prediction %s was lost", live.id)
            outcome = Outcome.FAILED
        self.outcomes[outcome] += 1
        self._count(outcome)

    async def _compare(self, given: Prediction, inputs: Mapping[str, JsonValue], info: ModelInfo) -> Outcome:
        if self._num_asked >= MAX_ASKED or not self._pool.has_room():
            return Outcome.DROPPED
        self._num_asked += 1
        try:
            asked = Prediction(new_id(), given.model, given.version, given.input, now())
            said = await ask_apart(asked, self._pool, Turn(), seconds=MAX_SECONDS, max_bytes=self._max_output_bytes)
        finally:
            self._num_asked -= 1
        if said.error == INTERRUPTED:
            return Outcome.DROPPED
        # Cog puts the time into the end of each prediction; without it the server has not said how it ended.
        if said.status is not Status.SUCCEEDED and "predict_time" not in said.metrics:
            return Outcome.FAILED
        answer = output_text(said.output) if said.status is Status.SUCCEEDED else None
        if answer is not None and canonical(answer) == canonical(output_text(given.output)):
            return Outcome.SAME
        if self.table is not None:
            is_example = await self._is_example(given, inputs, info)
            await self.table.keep(given.id, answer, said.error, is_example=is_example)
        return Outcome.DIFFERENT

    async def _is_example(self, given: Prediction, inputs: Mapping[str, JsonValue], info: ModelInfo) -> bool:
        """Whether an example of the playground, or of those that the caller sees, has these inputs."""
        try:
            examples = [one.input for one in profile_for(info.input_properties, self._playground).examples]
        except GatewayError:  # the operator's file is wrong, which the playground says
            examples = []
        if (kept := self._corrections) is not None:
            own = kept if given.owner is None else kept.of(given.owner)
            examples += [dict(one.input) for one in await asyncio.to_thread(own.all, kind=Kind.EXAMPLE)]
        return any(one and complete_inputs(one, {}).items() <= inputs.items() for one in examples)


def is_chosen(prediction_id: str, share: float) -> bool:
    """Whether a prediction is one of the share that the candidate is asked; for one id always the same."""
    number = int.from_bytes(hashlib.blake2b(prediction_id.encode(), digest_size=8).digest())
    return number < share * 2**64


def canonical(answer: str) -> str:
    """A text that is the same for answers that say the same: JSON with sorted keys and one way to write a number."""
    try:
        return json.dumps(json.loads(answer, parse_float=_plain), sort_keys=True)
    except (ValueError, RecursionError):
        return answer.strip()


def _plain(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


@asynccontextmanager
async def open_shadow(
    settings: GatewaySettings,
    model: ModelInfoReader,
    corrections: CorrectionFile | None,
    count: Callable[[str], None],
) -> AsyncIterator[Shadow | None]:
    """The shadow that the settings ask for while the context lasts, of an open database; None if they ask for none."""
    if settings.shadow is None:
        yield None
        return
    async with AsyncExitStack() as stack:
        table = PairTable(settings.database, settings.shadow_name) if settings.keep else None
        if table is not None:
            await table.open()
            stack.push_async_callback(table.close)
        shadow = Shadow(
            Upstream(settings.shadow),
            name=settings.shadow_name,
            share=settings.shadow_share,
            read_model=model,
            count=count,
            max_output_bytes=settings.max_output_bytes,
            table=table,
            corrections=corrections,
            playground=settings.playground,
        )
        stack.push_async_callback(shadow.close)
        await shadow.start()
        yield shadow
