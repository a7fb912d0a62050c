"""Several engines share the rows; each row is answered once, whichever engines die, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from pipeline.batch.engines_runner import EnginesRunner
from pipeline.batch.errors import BatchError
from pipeline.batch.rows import Row, RowAnswer
from serving.errors import EngineDeadError

DEADLY, DEADLY_TO_PREPARE = "deadly", "deadly to prepare"


class DyingWorker:
    """Answers rows, and dies with everything that is in flight.

    Args:
        dies: whether it dies at its call of this number.
        again: called when it is started again after a death.
    """

    def __init__(
        self, dies: Callable[[int], bool] = lambda call: False, again: Callable[[], None] | None = None
    ) -> None:
        self._dies, self._again = dies, again
        self.calls = self.starts = 0
        self.answered: list[int] = []
        self._prepared: dict[int, Row] = {}
        self._is_dead = True

    async def start(self) -> None:
        assert self._is_dead, "only a dead engine is replaced"
        self.starts += 1
        if self.starts > 1 and self._again is not None:
            self._again()
            await asyncio.Event().wait()  # there is no room for a new one
        self._prepared = {}
        self._is_dead = False

    async def prepare(self, rows: list[Row]) -> list[Row]:
        await self._live(any(row.values["text"] == DEADLY_TO_PREPARE for row in rows))
        self._prepared |= {row.number: row for row in rows}
        return rows

    async def answer(self, number: int) -> RowAnswer:
        row = self._prepared.pop(number)
        self.calls += 1
        await self._live(row.values["text"] == DEADLY or self._dies(self.calls))
        self.answered.append(number)
        return RowAnswer(number, row.values["text"])

    def close(self) -> None:
        self._is_dead = True

    async def _live(self, dies: bool) -> None:
        """Take a moment, in which another call may end this worker."""
        self._is_dead = self._is_dead or dies
        await asyncio.sleep(0)
        if self._is_dead:
            raise EngineDeadError("it died")


async def run(workers: list[DyingWorker], texts: list[str], window: int = 16) -> list[RowAnswer]:
    """The answers in the order of the rows; fails if a row has two."""
    runner = EnginesRunner(workers, concurrency=4, num_rows=len(texts), window=window)
    rows = (Row(number, {"text": text}) for number, text in enumerate(texts))
    async with aclosing(runner.run(rows, lambda: True)) as answers, asyncio.timeout(120):
        found = sorted([answer async for answer in answers], key=lambda one: one.number)
    assert [one.number for one in found] == list(range(len(texts)))
    return found


@pytest.mark.parametrize("every", [7, 20, 61])
async def test_every_row_is_answered_once_though_engines_die(every: int) -> None:
    workers = [DyingWorker(lambda call, k=k: call % every == k) for k in range(3)]
    found = await run(workers, [f"row {i}" for i in range(500)])
    assert [one.answer for one in found] == [f"row {i}" for i in range(500)]
    assert sum(worker.starts for worker in workers) > 5


async def test_only_a_row_that_kills_engines_alone_is_a_failure() -> None:
    texts = [DEADLY if i in (3, 40, 41) else f"row {i}" for i in range(60)]
    found = await run([DyingWorker(), DyingWorker()], texts)
    assert [one.number for one in found if one.error] == [3, 40, 41]
    assert found[3].error == "the engine died when it answered this row alone: it died"


async def test_a_row_that_cannot_be_prepared_is_a_failure_after_some_deaths() -> None:
    workers = [DyingWorker(), DyingWorker()]
    found = await run(workers, [DEADLY_TO_PREPARE if i == 30 else f"row {i}" for i in range(60)])
    assert [one.number for one in found if one.error] == [30]
    assert sum(worker.starts for worker in workers) < 20


async def test_rows_of_an_engine_for_which_there_is_no_room_any_more_go_to_another() -> None:
    waits = []
    lost = DyingWorker(lambda call: call == 5, again=lambda: waits.append(True))
    other = DyingWorker()
    found = await run([lost, other], [f"row {i}" for i in range(200)])
    assert waits == [True]
    assert all(one.error is None for one in found)
    assert len(lost.answered) < 5 < len(other.answered)


async def test_an_engine_that_does_not_start_again_is_given_up_and_the_last_one_ends_the_run(capsys) -> None:
    def fail() -> None:
        raise BatchError("a broken machine")

    broken = DyingWorker(lambda call: call == 5, again=fail)
    await run([broken, DyingWorker()], [f"row {i}" for i in range(200)])
    assert "One engine is given up (a broken machine); engines left: 1" in capsys.readouterr().err
    with pytest.raises(BatchError, match="no engine works: a broken machine"):
        await run([DyingWorker(lambda call: call == 5, again=fail) for _ in range(2)], ["row"] * 200)


async def test_engines_share_an_input_that_would_fit_one_window() -> None:
    workers = [DyingWorker() for _ in range(4)]
    await run(workers, ["row"] * 400, window=2_048)
    assert all(len(worker.answered) > 50 for worker in workers)
