"""The rows that no worker has: those not read yet, and those that came back from workers that died."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from pipeline.batch.rows import Row

_PREPARATIONS: Final = 3  # in which a worker died, after which each of the rows is asked alone


class RowPool:
    """Gives each row to one worker at a time.

    A worker `enter`s before it takes rows, and `leave`s when it has answered them or has given them back.

    Args:
        rows: all rows.
        window: number of rows to give at once, after so many have been given.
    """

    def __init__(self, rows: Iterator[Row], window: Callable[[int], int]) -> None:
        self._rows, self._window = rows, window
        self._num_read = 0
        self._is_read = False  # whether `rows` has ended
        self._back: deque[Row] = deque()
        self._suspects: deque[Row] = deque()
        self._preparations: Counter[int] = Counter()
        self._workers = 0
        self._reading = asyncio.Lock()
        self._changed = asyncio.Condition()
        self.is_stopped = False  # whether no further row may be started

    async def take(self) -> list[Row]:
        """The next rows; none if all have been given or no further row may be started."""
        async with self._reading:
            count = self._window(self._num_read)
            if self.is_stopped or self._is_read or self._back:
                given = 0 if self.is_stopped else min(count, len(self._back))
                return [self._back.popleft() for _ in range(given)]
            rows = await asyncio.to_thread(lambda: list(islice(self._rows, count)))
            self._num_read += len(rows)
            self._is_read = len(rows) < count
            return rows

    def take_suspect(self) -> Row | None:
        """A row that must be asked alone, if there is one."""
        return self._suspects.popleft() if self._suspects else None

    def give_back(self, rows: list[Row]) -> None:
        """Take rows back that were not started."""
        self._back.extend(rows)

    def give_back_unprepared(self, rows: list[Row]) -> None:
        """Take rows back whose worker died when it prepared them."""
        for row in rows:
            self._preparations[row.number] += 1
            (self._back if self._preparations[row.number] < _PREPARATIONS else self._suspects).append(row)

    def suspect(self, row: Row) -> None:
        """Take a row back whose worker died when it answered it."""
        self._suspects.append(row)

    def stop(self) -> None:
        """Start no further row; those that were started are asked again if they come back."""
        self.is_stopped = True

    def enter(self) -> None:
        """Count a worker that may have rows."""
        self._workers += 1

    async def leave(self) -> None:
        """A worker has no rows any more."""
        self._workers -= 1
        async with self._changed:
            self._changed.notify_all()

    async def until_rows(self) -> None:
        """Wait until there are rows, or all is done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_rows or self.is_done)

    async def until_done(self) -> None:
        """Wait until all rows are answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_done)

    @property
    def is_done(self) -> bool:
        """Whether there are no rows here, and none at workers."""
        return not self._workers and not self._has_rows

    @property
    def _has_rows(self) -> bool:
        return bool(self._suspects) or not (self.is_stopped or (self._is_read and not self._back))
