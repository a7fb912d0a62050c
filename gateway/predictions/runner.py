"""Runs predictions on the pool's servers, each in a task of its own that no client's disconnect ends."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from gateway.cache.answer_cache import AnswerCache, CacheEntry, CacheUse, marked_as_new, metrics_of_copy
from gateway.errors import TooManyPredictionsError, UnavailableError
from gateway.keys.callers import Caller
from gateway.predictions.live_prediction import Run
from gateway.predictions.prediction import Prediction, Status
from gateway.predictions.prediction_task import Execution
from gateway.predictions.store import Store
from gateway.upstream.pool import Pool, Turn

_log = logging.getLogger(__name__)
SAVE_SECONDS = 0.5  # between two saves of what is running
SAVE_BATCH = 16  # predictions in one transaction; streams go on between two of them
SAVE_RATE = 4 << 20  # bytes of running predictions that are saved in a second; each counts as SAVE_COST bytes more
SAVE_COST = 4 << 10


class Runner:
    """All predictions that run or wait.

    Args:
        pool: of the servers.
        store: keeps the predictions.
        check_inputs: raises InvalidInputError; for predictions that have to wait, since servers check the others.
        prefix_inputs: names of the inputs with which prompts begin.
        max_active: one more is refused.
        max_output_bytes: limit of one prediction's output and logs.
        max_seconds: limit of one prediction's time on a server.
        cache: of answers; None for none.
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
        self._active: dict[str, Execution] = {}
        self._unsaved = UnsavedEnds(store)
        self.on_start: list[Callable[[Run], None]] = []  # called with each new run, before it shows anything
        self._caller: Caller | None = None  # who starts and sees predictions; None: everybody

    def of(self, caller: Caller) -> Runner:
        """The same runner, with which one caller starts predictions within its limits and sees only its own."""
        view = copy.copy(self)
        view._caller, view._store = caller, self._store.of(caller.name)
        return view

    @property
    def num_active(self) -> int:
        """Predictions that run or wait."""
        return len(self._active)

    async def start(self, prediction: Prediction, cache_use: CacheUse = CacheUse.NORMAL) -> Run:
        """Keep a new prediction and run it. Returns once a server has accepted it, it waits for one, or has ended.

        Raises:
            InvalidInputError: the inputs are not what the model's schema asks; the prediction is not kept.
            TooManyPredictionsError: too many run or wait, or the caller is over its limits.
            UnavailableError: it cannot be kept.
        """
        if self._caller is not None:
            prediction = replace(prediction, owner=self._caller.name)
        entry = None if self._cache is None else await self._cache.entry_for(prediction, cache_use)
        if entry is not None and (original := await entry.find()) is not None:
            return await self._start_as_copy(prediction, original)
        self._check_room()
        turn = Turn(prediction.owner, _adapter(prediction.input))
        if not self._pool.has_room(turn):
            await self._check_inputs(prediction.input)
            self._check_room()  # others may have come meanwhile
        self._count_for_caller()
        run = Run(prediction, max_bytes=self._max_output_bytes)
        prefix = prefix_of(prediction.input, self._prefix_inputs)
        execution = Execution(run, self._pool, prefix, turn, self._max_seconds)
        self._active[run.id] = execution
        for observer in self.on_start:
            observer(run)
        execution.task = asyncio.create_task(self._supervise(execution, entry), name=f"prediction {run.id}")
        try:
            await self._save_new(prediction)
        except UnavailableError:
            execution.cancel()
            raise
        if (refusal := await run.settled()) is not None:
            await run.finished()
            await self._store.delete(run.id)
            raise refusal
        return run

    def find(self, prediction_id: str) -> Run | None:
        """A prediction that runs or waits."""
        execution = self._active.get(prediction_id)
        return execution.run if execution is not None and self._may_see(execution.run.owner) else None

    async def get(self, prediction_id: str) -> Prediction | None:
        """A prediction, whether it runs or is kept."""
        if (run := self.find(prediction_id)) is not None:
            return run.shown()
        final = self._unsaved.find(prediction_id)
        return final if final is not None and self._may_see(final.owner) else await self._store.get(prediction_id)

    def cancel(self, prediction_id: str) -> None:
        """Cancel a prediction if it runs or waits; its run tells when that is done."""
        if self.find(prediction_id) is not None:
            self._active[prediction_id].cancel()

    async def delete(self, prediction_id: str) -> bool:
        """Forget a prediction, which is cancelled first if it runs; whether there was one."""
        if (run := self.find(prediction_id)) is not None:
            self.cancel(prediction_id)
            await run.finished()
        if (final := self._unsaved.find(prediction_id)) is not None and self._may_see(final.owner):
            self._unsaved.forget(prediction_id)
        return await self._store.delete(prediction_id)

    async def save_changes(self) -> None:
        """Save what running predictions have produced, for ever; to be run as a task.

        A save writes all that a prediction has produced. So it is paced: many or large ones are saved less often.
        """
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self._unsaved.save()
            runs = [execution.run for execution in self._active.values() if execution.run.is_dirty]
            for start in range(0, len(runs), SAVE_BATCH):
                batch = [run for run in runs[start : start + SAVE_BATCH] if not run.is_finished]
                await self._save(batch)
                await asyncio.sleep(sum(run.num_bytes + SAVE_COST for run in batch) / SAVE_RATE)

    async def _save(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.is_dirty = False
        try:
            await self._store.save(*(run.snapshot() for run in runs))
        except sqlite3.Error:
            _log.exception("running predictions could not be saved; the gateway tries again")
            for run in runs:
                run.is_dirty = True

    async def close(self, drain_seconds: float) -> None:
        """Let running predictions finish for a while; what runs longer is marked as interrupted."""
        executions = list(self._active.values())
        tasks = [execution.task for execution in executions if execution.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=drain_seconds)
        for execution in executions:
            execution.interrupt()
        await asyncio.gather(*tasks)
        await self._unsaved.save()

    async def _start_as_copy(self, prediction: Prediction, original: Prediction) -> Run:
        """A new prediction with the answer of another one."""
        self._count_for_caller()
        run = Run(prediction, max_bytes=self._max_output_bytes)
        run.begin()
        metrics = metrics_of_copy(original, prediction.owner)
        final = run.ended(Status.SUCCEEDED, output=original.output, logs=original.logs, metrics=metrics)
        await self._save_new(final)
        for observer in self.on_start:
            observer(run)
        run.finish(final)
        return run

    def _check_room(self) -> None:
        if len(self._active) >= self._max_active:
            text = f"{self._max_active:,} predictions run or wait; send it again when some have ended"
            raise TooManyPredictionsError(text, retry_after=1)

    def _may_see(self, owner: str | None) -> bool:
        return self._caller is None or owner == self._caller.name

    def _count_for_caller(self) -> None:
        if self._caller is not None:
            self._caller.take(sum(one.run.owner == self._caller.name for one in self._active.values()))

    async def _save_new(self, prediction: Prediction) -> None:
        try:
            await self._store.save(prediction)
        except sqlite3.Error as error:
            raise UnavailableError(f"predictions cannot be kept: {error}; see the gateway's database") from error

    async def _supervise(self, execution: Execution, entry: CacheEntry | None) -> None:
        """Keep the final state, then show it: nobody sees an end that a kill of the gateway could undo."""
        run = execution.run
        try:
            final = await execution.run_to_end()
            if final.status is not Status.SUCCEEDED:
                entry = None
            if entry is not None:
                final = marked_as_new(final)
            try:
                await self._store.save(final)
                if entry is not None:
                    await entry.keep(final)
            except sqlite3.Error:
                _log.exception("the end of prediction %s could not be saved; the gateway tries again", run.id)
                self._unsaved.add(final)
            run.finish(final)
        finally:
            self._active.pop(run.id, None)


def _adapter(inputs: Mapping[str, JsonValue]) -> str | None:
    """The adapter that predict() is asked for, see docs/adapters.md."""
    name = inputs.get("adapter")
    return name if isinstance(name, str) and name else None


def prefix_of(inputs: Mapping[str, JsonValue], names: tuple[str, ...]) -> bytes | None:
    """What is equal for prompts that begin alike: these inputs, and of a list the first item; None without them."""
    values = [inputs[name] for name in names if inputs.get(name)]
    if not values:
        return None
    return json.dumps([value[0] if isinstance(value, list) else value for value in values], sort_keys=True).encode()


class UnsavedEnds:
    """Predictions that have ended, while the database says that they run.

    Args:
        store: refused them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._finals: dict[str, Prediction] = {}

    def add(self, final: Prediction) -> None:
        """Show it from here until it is saved."""
        self._finals[final.id] = final

    def find(self, prediction_id: str) -> Prediction | None:
        """A prediction that is not saved."""
        return self._finals.get(prediction_id)

    def forget(self, prediction_id: str) -> None:
        """Do not save it any more."""
        self._finals.pop(prediction_id, None)

    async def save(self) -> None:
        """Save as many as the database takes."""
        for final in tuple(self._finals.values()):
            if final.id not in self._finals:  # deleted meanwhile
                continue
            try:
                await self._store.save(final)
            except sqlite3.Error:  # the log has its first refusal
                return
            self.forget(final.id)
