"""Several Cog servers: chooses one for each prediction, ejects those that fail and takes them back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gateway.model_server import ModelServer
from gateway.upstream import UpstreamClosedError, UpstreamError

_log = logging.getLogger(__name__)
HEALTH_SECONDS = 1.0  # between two health checks of one server
RETURN_SECONDS = 0.2  # the same for one that was not healthy
MAX_SILENT = 2  # health checks without an answer, of 3.8 seconds each, until a server's predictions are given up
MAX_IMBALANCE = 4  # more outstanding predictions than on another server that a cached prefix is worth
FULL_SECONDS = 0.5  # how long a server that was full is left alone, unless one of its predictions ends before


class Server:
    """One Cog server and what the door knows of it."""

    def __init__(self, upstream: ModelServer) -> None:
        self.upstream = upstream
        self.outstanding = 0  # predictions that the door has there
        self.is_healthy = False  # until its first health check
        self.is_full = False
        self.trouble = "has not been asked yet"  # why it is not healthy
        self.num_silent = 0  # health checks in a row without any answer
        self.on_silence: dict[object, Callable[[], None]] = {}  # ends predictions there when it does not come back


class Pool:
    """Servers, and the requests that wait for one of them.

    Args:
        servers: clients of them; the pool closes them.
    """

    num_returns = 0  # how often a server became healthy, perhaps with another model

    def __init__(self, servers: Sequence[ModelServer]) -> None:
        self.servers = tuple(Server(upstream) for upstream in servers)
        self._waiting: dict[asyncio.Event, None] = {}  # in order of arrival
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: set[asyncio.TimerHandle] = set()

    async def start(self) -> None:
        """Check every server once, then watch them."""
        await asyncio.gather(*(self._check(server) for server in self.servers))
        self._tasks = [asyncio.create_task(self._watch(server)) for server in self.servers]

    async def close(self) -> None:
        """Stop watching and close the connections."""
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.upstream.close() for server in self.servers))

    @property
    def num_waiting(self) -> int:
        """Predictions that wait for a server."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a prediction would get a server at once."""
        return not self._waiting and self._choose() is not None

    @asynccontextmanager
    async def lease(self, prefix: bytes | None = None) -> AsyncIterator[Server]:
        """A server for one prediction; waits, first come first served, while all are full or ejected.

        Args:
            prefix: the same for predictions whose prompts begin alike, so that a server has the beginning in its cache.
        """
        server = await self._wait_for_server(prefix)
        try:
            yield server
        finally:
            server.outstanding -= 1
            server.is_full = False
            self._wake()

    def report_full(self, server: Server) -> None:
        """The server refused a prediction because all of its slots are taken."""
        server.is_full = True

        def try_again() -> None:
            self._timers.discard(timer)
            server.is_full = False
            self._wake()

        # Its slots may be taken by others than this door, whose predictions end unseen.
        timer = asyncio.get_running_loop().call_later(FULL_SECONDS, try_again)
        self._timers.add(timer)

    def report_broken(self, server: Server, trouble: str) -> None:
        """The server did not answer: it gets no more predictions before a health check succeeds."""
        if server.is_healthy:
            _log.warning("ejected %s: %s", server.upstream.name, trouble)
        server.is_healthy, server.trouble = False, trouble

    def healthy(self) -> Server | None:
        """Any server that answers."""
        return next((server for server in self.servers if server.is_healthy), None)

    async def _wait_for_server(self, prefix: bytes | None) -> Server:
        turn = asyncio.Event()
        self._waiting[turn] = None
        try:
            while next(iter(self._waiting)) is not turn or (server := self._choose(prefix)) is None:
                turn.clear()
                await turn.wait()
            server.outstanding += 1
            return server
        finally:
            del self._waiting[turn]
            self._wake()

    def _choose(self, prefix: bytes | None = None) -> Server | None:
        """The server with the fewest outstanding predictions, or the prefix's own if it has not many more."""
        usable = [server for server in self.servers if server.is_healthy and not server.is_full]
        fewest = min(usable, key=lambda server: server.outstanding, default=None)
        if prefix is None or fewest is None:
            return fewest
        # Rendezvous hashing: while the prefix's server is away, another one takes its place; other prefixes stay.
        own = max(usable, key=lambda server: hashlib.blake2b(prefix + server.upstream.url.encode()).digest())
        return own if own.outstanding <= fewest.outstanding + MAX_IMBALANCE else fewest

    def _wake(self) -> None:
        """Let the first that waits try again."""
        for turn in self._waiting:
            turn.set()
            return

    async def _watch(self, server: Server) -> None:
        while True:
            await asyncio.sleep(HEALTH_SECONDS if server.is_healthy else RETURN_SECONDS)
            with contextlib.suppress(Exception):
                await self._check(server)

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
