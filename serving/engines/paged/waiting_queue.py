"""The requests that wait for blocks: preempted ones first, then one of each adapter in turn.

So a burst of requests for one adapter does not hold up the others. Requests of the same adapter stay in their order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator

from serving.engines.paged.request import Request


class WaitingQueue:
    """Requests without blocks."""

    def __init__(self) -> None:
        self._preempted: deque[Request] = deque()
        self._by_adapter: OrderedDict[str | None, deque[Request]] = OrderedDict()  # whose turn it is first

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._by_adapter.values()))

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        for requests in self._by_adapter.values():
            yield from requests

    def add(self, request: Request) -> None:
        """Add a new request behind those of its adapter."""
        self._by_adapter.setdefault(request.adapter, deque()).append(request)

    def add_first(self, request: Request) -> None:
        """Add a request that made room for another adapter before those of its own, whose turn comes last."""
        self._by_adapter.setdefault(request.adapter, deque()).appendleft(request)
        self._by_adapter.move_to_end(request.adapter)

    def bring_forward(self, running: Collection[str | None]) -> bool:
        """Make a request the head whose adapter has no running one; False if there is none, or others come first."""
        absent = [adapter for adapter in self._by_adapter if adapter not in running]
        if self._preempted or not absent:
            return False
        self._by_adapter.move_to_end(absent[0], last=False)
        return True

    def put_back(self, request: Request) -> None:
        """Add a preempted request before all others."""
        self._preempted.appendleft(request)

    @property
    def head(self) -> Request:
        """The request that is next; there must be one."""
        return self._preempted[0] if self._preempted else next(iter(self._by_adapter.values()))[0]

    def pop(self) -> Request:
        """Take the head; its adapter's turn comes again after all others."""
        if self._preempted:
            return self._preempted.popleft()
        adapter, requests = self._by_adapter.popitem(last=False)
        request = requests.popleft()
        if requests:
            self._by_adapter[adapter] = requests
        return request

    def remove(self, request: Request) -> None:
        """Take a request that is no longer wanted."""
        if request in self._preempted:
            self._preempted.remove(request)
            return
        requests = self._by_adapter[request.adapter]
        requests.remove(request)
        if not requests:
            del self._by_adapter[request.adapter]
