"""The bounded set of requests that another engine computes for us.

in_flight = OpenRequests(max_num_seqs=32, max_queue=256)
relay = in_flight.admit("id-1", check_alive)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from serving.clients.relay import CLOSED, Relay
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError
from serving.types import EngineStats


class OpenRequests:
    """The requests of an engine that have not ended, by their ids; bounded.

    Args:
        max_num_seqs: limit of running requests.
        max_queue: limit of waiting requests.
    """

    def __init__(self, *, max_num_seqs: int, max_queue: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._capacity = max_num_seqs + max_queue
        self._relays: dict[str, Relay] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.num_outputs = 0

    def admit(self, request_id: str, check_alive: Callable[[], None]) -> Relay:
        """A relay for a new request; to be called on its reader's loop.

        Args:
            request_id: of the request.
            check_alive: raises EngineDeadError if the engine cannot answer any more.

        Raises:
            InvalidRequestError: the id is in flight.
            EngineBusyError: the limits are reached.
            EngineDeadError: see `check_alive`.
        """
        with self._lock:
            check_alive()
            if request_id in self._relays:
                raise InvalidRequestError(f"request id {request_id!r} is in flight; choose another")
            if len(self._relays) >= self._capacity:
                raise EngineBusyError(f"busy: {self._capacity} requests are in flight; try again later")
            relay = self._relays[request_id] = self.relay()
        return relay

    def relay(self) -> Relay:
        """A relay that counts towards no limit, for a health check."""
        return Relay(asyncio.get_running_loop(), self._count_output)

    def release(self, request_id: str) -> None:
        """Forget a request that has ended."""
        with self._lock:
            self._relays.pop(request_id, None)

    def close(self) -> bool:
        """Send EngineDeadError to all readers; False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            relays = list(self._relays.values())
        for relay in relays:
            relay.put(EngineDeadError(CLOSED))
        return True

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def stats(self) -> EngineStats:
        """The numbers of requests, and of outputs as steps; there are no blocks."""
        count = len(self._relays)
        running = min(count, self._max_num_seqs)
        return EngineStats(running, count - running, 0, 0, self.num_outputs)

    def _count_output(self) -> None:
        """Called on the engine's loop, so that a slow reader does not delay the count."""
        self.num_outputs += 1
