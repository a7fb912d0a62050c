"""Chooses the replica whose KV cache has the beginning of a prompt, within Ray Serve's interface for routers."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from gateway.predictions.runner import prefix_of
from gateway.upstream.pool import MAX_IMBALANCE

_MAX_PREFIXES: Final = 10_000  # remembered; the one that was not asked for longest is forgotten


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray has no type information
    """The replica that had the same prefix last, unless it has many more requests; else the power of two choices.

    Ray's own PrefixCacheAffinityRouter reads only messages and prompts, and the inputs here have any names.
    """

    def initialize_state(self, prefix_inputs: Sequence[str]) -> None:
        """Called by Ray Serve with `request_router_kwargs`.

        Args:
            prefix_inputs: names of the inputs with which prompts begin.
        """
        self._prefix_inputs = tuple(prefix_inputs)
        self._last: OrderedDict[bytes, ReplicaID] = OrderedDict()  # replica by prefix

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Groups of replicas; Ray tries the next group where all of one are full, and of a group the least busy."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # wait a little when all are full
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        prefix = None if pending_request is None else self._prefix(pending_request)
        own = None if prefix is None else self._last.get(prefix)
        mine = [replica for replica in candidate_replicas if replica.replica_id == own]
        if mine and self._length(mine[0]) <= min(map(self._length, candidate_replicas)) + MAX_IMBALANCE:
            return [mine, two]
        return [two]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Called by Ray Serve once a replica has a request."""
        if (prefix := self._prefix(pending_request)) is not None:
            self._last[prefix] = replica_id
            self._last.move_to_end(prefix)
            if len(self._last) > _MAX_PREFIXES:
                self._last.popitem(last=False)

    def _prefix(self, request: PendingRequest) -> bytes | None:
        """The prefix of a prediction; its inputs are the first argument of `ModelReplica.predict`."""
        inputs = request.args[0] if request.args else None
        return prefix_of(inputs, self._prefix_inputs) if isinstance(inputs, dict) else None

    def _length(self, replica: RunningReplica) -> int:
        """Requests that this router has there; Ray forgets the number where it is old."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0
