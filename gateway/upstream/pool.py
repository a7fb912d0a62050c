"""Several Cog servers: chooses one for each prediction, ejects those that fail and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from gateway.upstream.model_server import ModelServer, UpstreamClosedError, UpstreamError

_log = logging.getLogger(__name__)
HEALTH_SECONDS = 1.0  # between two health checks of one server
RETURN_SECONDS = 0.2  # the same for one that was not healthy
MAX_SILENT = 2  # health checks without an answer, of 3.8 seconds each, until a server's predictions are given up
MAX_IMBALANCE = 4  # more outstanding predictions than on another server that a cached prefix is worth
FULL_SECONDS = 0.5  # how long a server that was full is left alone, unless one of its predictions ends before


class Turn(NamedTuple):
    """The predictions of one caller for one adapter. Where predictions wait, each turn gets a place in its turn."""

    caller: str | None = None
    adapter: str | None = None


class Server:
    """One Cog server, and what the gateway knows of it."""

    def __init__(self, upstream: ModelServer) -> None:
        self.upstream = upstream
        self.turns: Counter[Turn] = Counter()  # predictions that the gateway has there
        self.num_passed_on = 0  # requests in Cog's own protocol
        self.is_healthy = False  # until its first health check
        self.is_full = False
        self.trouble = "has not been asked yet"  # why it is not healthy
        self.num_silent = 0  # health checks in a row without any answer
        self.on_silence: dict[object, Callable[[], None]] = {}  # ends predictions there when it does not come back

    @property
    def outstanding(self) -> int:
        """The number of predictions that the gateway has there."""
        return self.turns.total()

    @contextmanager
    def passing_on(self) -> Iterator[None]:
        """A context while a request in Cog's own protocol is passed on to it."""
        self.num_passed_on += 1
        try:
            yield
        finally:
            self.num_passed_on -= 1


class Pool:
    """The servers, and the predictions that wait for one of them.

    Args:
        servers: the clients of the servers; the pool closes them.
        concurrency: the number of predictions on a server beyond which it takes only some of a turn that has none
            there, so that a burst does not hold up others until its first prediction ends; None for no such limit.
    """

    num_returns = 0
    """The number of times that a server became healthy, perhaps with another model."""

    def __init__(self, servers: Sequence[ModelServer], *, concurrency: int | None = None) -> None:
        self.servers = tuple(Server(upstream) for upstream in servers)
        self.on_replaced: list[Callable[[], None]] = []
        """What is called when `servers` are others."""
        self._replaced = set[Server]()  # they finish the predictions that they have
        self._concurrency = concurrency
        self._waiting: OrderedDict[Turn, deque[asyncio.Event]] = OrderedDict()  # whose turn it is first
        self._tasks: dict[Server, asyncio.Task[None]] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    async def start(self) -> None:
        """Check every server once, then watch them."""
        await asyncio.gather(*(self._check(server) for server in self.servers))
        for server in self.servers:
            self._tasks[server] = asyncio.create_task(self._watch(server))

    async def replace(self, servers: Sequence[ModelServer], on_replaced: Callable[[], None] = lambda: None) -> None:
        """Let other servers take over as soon as one of them is ready; those before finish what they have.

        Args:
            servers: the clients of the servers; the pool closes them, also where it is cancelled before the end.
            on_replaced: is called at the moment when they take over.
        """
        new = tuple(Server(upstream) for upstream in servers)
        try:
            await asyncio.gather(*(self._check(server) for server in new))
            while not any(server.is_healthy for server in new):
                await asyncio.sleep(RETURN_SECONDS)
                await asyncio.gather(*(self._check(server) for server in new))
        except BaseException:
            await asyncio.gather(*(server.upstream.close() for server in new))
            raise
        self._replaced.update(self.servers)
        self.servers = new
        for server in new:
            self._tasks[server] = asyncio.create_task(self._watch(server))
        self.num_returns += 1
        for call in (on_replaced, *self.on_replaced):
            call()
        self._wake()

    async def close(self) -> None:
        """Stop watching the servers, and close the connections to them."""
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(server.upstream.close() for server in (*self.servers, *self._replaced)))

    @property
    def num_running(self) -> int:
        """The number of predictions that the servers have, also those that were replaced."""
        return sum(server.outstanding for server in (*self.servers, *self._replaced))

    @property
    def num_waiting(self) -> int:
        """The number of predictions that wait for a server."""
        return sum(map(len, self._waiting.values()))

    def has_room(self, turn: Turn = Turn()) -> bool:
        """Whether a prediction would get a server at once."""
        return turn not in self._waiting and self._choose(turn) is not None

    @asynccontextmanager
    async def lease(self, prefix: bytes | None = None, turn: Turn = Turn()) -> AsyncIterator[Server]:
        """A server for one prediction. It waits while all are full or ejected; within a turn, who comes first is first.

        Args:
            prefix: the same bytes for predictions whose prompts begin alike, so that a server has the beginning of the
                prompt in its cache; None for any server.
            turn: the caller and adapter of the prediction.
        """
        server = await self._wait_for_server(prefix, turn)
        try:
            yield server
        finally:
            server.turns[turn] -= 1
            if not server.turns[turn]:
                del server.turns[turn]
            server.is_full = False
            self._wake()

    def report_full(self, server: Server) -> None:
        """Note that a server refused a prediction because all of its slots are taken."""
        server.is_full = True

        def try_again() -> None:
            self._timers.discard(timer)
            server.is_full = False
            self._wake()

        # Its slots may be taken by others than this gateway, whose predictions end unseen.
        timer = asyncio.get_running_loop().call_later(FULL_SECONDS, try_again)
        self._timers.add(timer)

    def report_broken(self, server: Server, trouble: str) -> None:
        """Note that a server did not answer: it gets no more predictions before a health check succeeds."""
        if server.is_healthy:
            _log.warning("ejected %s: %s", server.upstream.name, trouble)
        server.is_healthy, server.trouble = False, trouble

    def healthy(self) -> Server | None:
        """Any server that answers; None if there is none."""
        return next((server for server in self.servers if server.is_healthy), None)

    async def _wait_for_server(self, prefix: bytes | None, turn: Turn) -> Server:
        ready = asyncio.Event()
        waiting = self._waiting.setdefault(turn, deque())
        waiting.append(ready)
        try:
            while self._next() is not ready or (server := self._choose(turn, prefix)) is None:
                ready.clear()
                await ready.wait()
            server.turns[turn] += 1
            self._waiting.move_to_end(turn)
            return server
        finally:
            waiting.remove(ready)
            if not waiting:
                del self._waiting[turn]
            self._wake()

    def _next(self) -> asyncio.Event | None:
        """The first waiting prediction of the first turn for which there is a server."""
        return next((waiting[0] for turn, waiting in self._waiting.items() if self._choose(turn) is not None), None)

    def _choose(self, turn: Turn, prefix: bytes | None = None) -> Server | None:
        """The server with the fewest outstanding predictions, or the prefix's own if it has not many more."""
        usable = [server for server in self.servers if server.is_healthy and self._has_place(server, turn)]
        fewest = min(usable, key=lambda server: server.outstanding, default=None)
        if prefix is None or fewest is None:
            return fewest
        # Rendezvous hashing: while the prefix's server is away, another one takes its place; other prefixes stay.
        own = max(usable, key=lambda server: hashlib.blake2b(prefix + server.upstream.url.encode()).digest())
        return own if own.outstanding <= fewest.outstanding + MAX_IMBALANCE else fewest

    def _has_place(self, server: Server, turn: Turn) -> bool:
        is_within = self._concurrency is None or server.outstanding < self._concurrency
        return not server.is_full and (is_within or turn not in server.turns)

    def _wake(self) -> None:
        """Let the prediction that is next try to get a server again."""
        if (ready := self._next()) is not None:
            ready.set()

    async def _watch(self, server: Server) -> None:
        while server not in self._replaced or server.outstanding or server.num_passed_on:
            await asyncio.sleep(HEALTH_SECONDS if server.is_healthy else RETURN_SECONDS)
            with contextlib.suppress(Exception):
                await self._check(server)
        self._replaced.discard(server)
        del self._tasks[server]
        await server.upstream.close()

    async def _check(self, server: Server) -> None:
        try:
            status = await server.upstream.health()
        except UpstreamClosedError as error:  # its predictions go on or break off, and their streams tell which
            self.report_broken(server, str(error))
            server.num_silent = 0
            return
        except UpstreamError as error:
            self.report_broken(server, str(error))
            server.num_silent += 1
            if server.num_silent >= MAX_SILENT:
                for end in tuple(server.on_silence.values()):
                    end()
            return
        server.num_silent = 0
        if status not in ("READY", "BUSY"):
            self.report_broken(server, f"its health check says {status}")
            return
        if not server.is_healthy:
            _log.info("%s is ready", server.upstream.name)
            self.num_returns += 1
        server.is_healthy, server.trouble = True, ""
        self._wake()
