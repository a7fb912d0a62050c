"""Sends lines of inputs to a gateway, several at once, and counts what became of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from gateway.precompute.gateway_client import LineError, Outcome
from gateway.precompute.input_lines import InputLine, WrongLine


class LineRunner:
    """One run over a file.

    Args:
        predict: has one prediction answered.
        on_line: called after each line, with the problem if it failed.
    """

    def __init__(
        self, predict: Callable[[Mapping[str, Any]], Awaitable[Outcome]], on_line: Callable[[WrongLine | None], None]
    ) -> None:
        self._predict = predict
        self._on_line = on_line
        self.counts: Counter[Outcome] = Counter()
        self.num_failed = 0

    @property
    def num_done(self) -> int:
        """Lines that were answered or failed."""
        return self.counts.total() + self.num_failed

    async def run(self, lines: Iterable[InputLine | WrongLine], concurrency: int) -> None:
        """Send all lines, `concurrency` at once.

        Raises:
            GatewayUnusableError: the rest was not sent.
        """
        waiting = iter(lines)

        async def work() -> None:
            for line in waiting:
                await self._run_line(line)

        workers = [asyncio.create_task(work()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    async def _run_line(self, line: InputLine | WrongLine) -> None:
        problem = line if isinstance(line, WrongLine) else await self._problem_of(line)
        self.num_failed += problem is not None
        self._on_line(problem)

    async def _problem_of(self, line: InputLine) -> WrongLine | None:
        try:
            self.counts[await self._predict(line.inputs)] += 1
        except LineError as error:
            return WrongLine(line.number, str(error))
        return None
