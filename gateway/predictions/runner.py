"""Starts, finds, cancels and deletes predictions. Each runs in a task of its own, which no client's disconnect ends."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from gateway.cache.answer_cache import AnswerCache, CacheUse, marked_as_new, metrics_of_copy
from gateway.errors import TooManyPredictionsError, UnavailableError
from gateway.keys.callers import Caller
from gateway.predictions.live_prediction import LivePrediction
from gateway.predictions.prediction import Prediction, Status, adapter_of, new_id, now
from gateway.predictions.prediction_task import PredictionTask, ask_apart
from gateway.predictions.store import Store
from gateway.upstream.model_server import CHECK
from gateway.upstream.pool import Pool, Turn

_log = logging.getLogger(__name__)
SAVE_SECONDS = 0.5  # between two saves of what is running
SAVE_BATCH = 16  # predictions in one transaction; streams go on between two of them
SAVE_RATE = 4 << 20  # bytes of running predictions that are saved in a second; each counts as SAVE_COST bytes more
SAVE_COST = 4 << 10
CHECK_SECONDS = 10.0  # for a server to become free and to check an answer


class Runner:
    """Holds all predictions that run or wait, and reaches those that are kept.

    Args:
        pool: the servers that answer.
        store: the database that keeps the predictions.
        check_inputs: raises InvalidInputError; for predictions that have to wait, since servers check the others.
        prefix_inputs: the names of the inputs with which prompts begin.
        max_active: the number of predictions that may run or wait; one more is refused.
        max_output_bytes: the limit of one prediction's output and logs together.
        max_seconds: the limit of one prediction's time on a server; waiting does not count.
        cache: the cache of answers; None for no cache.
    """

    def __init__(
        self,
        pool: Pool,
        store: Store,
        *,
        check_inputs: Callable[[Mapping[str, JsonValue]], Awaitable[None]],
        prefix_inputs: tuple[str, ...],
        max_active: int,
        max_output_bytes: int,
        max_seconds: float,
        cache: AnswerCache | None = None,
    ) -> None:
        self._pool = pool
        self._store = store
        self._check_inputs = check_inputs
        self._prefix_inputs = prefix_inputs
        self._max_active = max_active
        self._max_output_bytes = max_output_bytes
        self._max_seconds = max_seconds
        self._cache = cache
        self._active: dict[str, PredictionTask] = {}
        self._unsaved: dict[str, Prediction] = {}  # final states that the database has refused, until it takes them
        self.on_start: list[Callable[[LivePrediction], None]] = []
        """What is called with each new prediction, before that shows anything."""
        self._caller: Caller | None = None  # who starts and sees predictions; None: everybody

    def of(self, caller: Caller) -> Runner:
        """The same runner, with which one caller starts predictions within its limits and sees only its own."""
        view = copy.copy(self)
        view._caller, view._store = caller, self._store.of(caller.name)
        return view

    @property
    def num_active(self) -> int:
        """The number of predictions that run or wait."""
        return len(self._active)

    async def start(self, prediction: Prediction, cache_use: CacheUse = CacheUse.NORMAL) -> LivePrediction:
        """Keep a new prediction and run it. This returns once it runs on a server, waits for one, or has ended.

        Raises:
            InvalidInputError: the inputs are not what the model's schema asks; the prediction is not kept.
            TooManyPredictionsError: too many run or wait, or the caller is over its limits.
            UnavailableError: the database cannot keep the prediction.
        """
        if self._caller is not None:
            prediction = replace(prediction, owner=self._caller.name)
        key = None
        if self._cache is not None and cache_use is not CacheUse.NONE:
            key = await self._cache.key_of(prediction)
            if key is not None and cache_use is CacheUse.NORMAL:
                original = await self._cache.find(key)
                if original is not None:
                    return await self._start_as_copy(prediction, original)
        self._check_room()
        turn = Turn(prediction.owner, adapter_of(prediction.input))
        if not self._pool.has_room(turn):
            await self._check_inputs(prediction.input)
            self._check_room()  # others may have come meanwhile
        self._count_for_caller()
        live = LivePrediction(prediction, max_bytes=self._max_output_bytes)
        prefix = prefix_of(prediction.input, self._prefix_inputs)
        task = PredictionTask(live, self._pool, prefix, turn, self._max_seconds)
        self._active[live.id] = task
        for observer in self.on_start:
            observer(live)
        task.supervisor = asyncio.create_task(self._supervise(task, key), name=f"prediction {live.id}")
        try:
            await self._save_new(prediction)
        except UnavailableError:
            task.cancel()
            raise
        if (refusal := await live.settled()) is not None:
            await live.finished()
            await self._store.delete(live.id)
            raise refusal
        return live

    async def check_answer(self, prediction: Prediction, answer: str) -> Prediction:
        """What a server says of a person's answer to a prediction's inputs, for at most `CHECK_SECONDS`.

        Returns:
            A prediction that is neither kept nor counted. If its metrics have `CHECKED`, its output is the answer as
            the model writes it, or its error says what is wrong; otherwise no server has checked it.

        Raises:
            TooManyPredictionsError: too many predictions run or wait.
        """
        self._check_room()
        asked = Prediction(new_id(), prediction.model, prediction.version, prediction.input, now())
        return await ask_apart(
            asked,
            self._pool,
            Turn(prediction.owner, adapter_of(prediction.input)),
            seconds=CHECK_SECONDS,
            max_bytes=self._max_output_bytes,
            context={CHECK: answer},
        )

    def find(self, prediction_id: str) -> LivePrediction | None:
        """The prediction with an id while it runs or waits, if the caller may see it."""
        task = self._active.get(prediction_id)
        return task.live if task is not None and self._may_see(task.live.owner) else None

    async def get(self, prediction_id: str) -> Prediction | None:
        """The prediction with an id, whether it runs or is kept, if the caller may see it."""
        if (live := self.find(prediction_id)) is not None:
            return live.shown()
        final = self._unsaved.get(prediction_id)
        return final if final is not None and self._may_see(final.owner) else await self._store.get(prediction_id)

    def cancel(self, prediction_id: str) -> None:
        """Cancel a prediction if it runs or waits; `LivePrediction.finished` tells when that is done."""
        if self.find(prediction_id) is not None:
            self._active[prediction_id].cancel()

    async def delete(self, prediction_id: str) -> bool:
        """Delete a prediction, which is cancelled first if it runs; returns whether there was one."""
        if (live := self.find(prediction_id)) is not None:
            self.cancel(prediction_id)
            await live.finished()
        if (final := self._unsaved.get(prediction_id)) is not None and self._may_see(final.owner):
            del self._unsaved[prediction_id]
        return await self._store.delete(prediction_id)

    async def save_changes(self) -> None:
        """Save again and again what running predictions have produced; this is run as a task that is cancelled.

        A save writes all that a prediction has produced. So saves are paced: many or large predictions get fewer.
        """
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self._save_ends()
            changed = [task.live for task in self._active.values() if task.live.is_dirty]
            for start in range(0, len(changed), SAVE_BATCH):
                batch = [live for live in changed[start : start + SAVE_BATCH] if not live.is_finished]
                await self._save(batch)
                await asyncio.sleep(sum(live.num_bytes + SAVE_COST for live in batch) / SAVE_RATE)

    async def _save(self, batch: Sequence[LivePrediction]) -> None:
        for live in batch:
            live.is_dirty = False
        try:
            await self._store.save(*(live.snapshot() for live in batch))
        except sqlite3.Error:
            _log.exception("running predictions could not be saved; the gateway tries again")
            for live in batch:
                live.is_dirty = True

    async def _save_ends(self) -> None:
        """Save as many of the final states as the database takes that it has refused before."""
        for final in tuple(self._unsaved.values()):
            if final.id not in self._unsaved:  # deleted meanwhile
                continue
            try:
                await self._store.save(final)
            except sqlite3.Error:  # the log has its first refusal
                return
            self._unsaved.pop(final.id, None)

    async def close(self, drain_seconds: float) -> None:
        """Let running predictions finish for a while; what runs longer is marked as interrupted."""
        tasks = list(self._active.values())
        supervisors = [task.supervisor for task in tasks if task.supervisor is not None]
        if supervisors:
            await asyncio.wait(supervisors, timeout=drain_seconds)
        for task in tasks:
            task.interrupt()
        await asyncio.gather(*supervisors)
        await self._save_ends()

    async def _start_as_copy(self, prediction: Prediction, original: Prediction) -> LivePrediction:
        """Keep a new prediction that has the answer of another one, and has ended."""
        self._count_for_caller()
        live = LivePrediction(prediction, max_bytes=self._max_output_bytes)
        live.begin()
        metrics = metrics_of_copy(original, prediction.owner)
        final = live.ended(Status.SUCCEEDED, output=original.output, logs=original.logs, metrics=metrics)
        await self._save_new(final)
        for observer in self.on_start:
            observer(live)
        live.finish(final)
        return live

    def _check_room(self) -> None:
        if len(self._active) >= self._max_active:
            text = f"{self._max_active:,} predictions run or wait; send it again when some have ended"
            raise TooManyPredictionsError(text, retry_after=1)

    def _may_see(self, owner: str | None) -> bool:
        return self._caller is None or owner == self._caller.name

    def _count_for_caller(self) -> None:
        if self._caller is not None:
            self._caller.take(sum(one.live.owner == self._caller.name for one in self._active.values()))

    async def _save_new(self, prediction: Prediction) -> None:
        try:
            await self._store.save(prediction)
        except sqlite3.Error as error:
            raise UnavailableError(f"predictions cannot be kept: {error}; see the gateway's database") from error

    async def _supervise(self, task: PredictionTask, key: str | None) -> None:
        """Keep the final state, then show it: nobody sees an end that a kill of the gateway could undo."""
        live = task.live
        try:
            final = await task.run_to_end()
            if final.status is not Status.SUCCEEDED:
                key = None
            if key is not None:
                final = marked_as_new(final)
            try:
                await self._store.save(final)
                if self._cache is not None and key is not None:
                    await self._cache.keep(key, final)
            except sqlite3.Error:
                _log.exception("the end of prediction %s could not be saved; the gateway tries again", live.id)
                self._unsaved[final.id] = final  # callers see it from there until it is saved
            live.finish(final)
        finally:
            self._active.pop(live.id, None)


def prefix_of(inputs: Mapping[str, JsonValue], names: tuple[str, ...]) -> bytes | None:
    """A text that is equal for prompts that begin alike: these inputs, and of a list its first item.

    Returns:
        The text as JSON; None where the prediction has none of these inputs.
    """
    values = [inputs[name] for name in names if inputs.get(name)]
    if not values:
        return None
    return json.dumps([value[0] if isinstance(value, list) else value for value in values], sort_keys=True).encode()
