"""Gradients of many packs at once: one thread and one set of gradients for each core.

Owns: the threads. Two workers of one core each beat one of two cores: there is no barrier in
every matmul, so a core that other programs use slows only itself. Knows nothing of optimizers.

    with Workers(model, count=2) as workers:
        total_loss, grads = workers.gradients(packs)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType

import torch
from torch import Tensor

from scripts.training.model import LoraLlama
from scripts.training.packing import Pack


class Workers:
    """A pool of threads, each with a replica of the model."""

    def __init__(self, model: LoraLlama, count: int) -> None:
        self.model = model
        self._device = model.embedding.device
        self._replicas: SimpleQueue[LoraLlama] = SimpleQueue()
        self._all = [model.replica() for _ in range(count)]
        for replica in self._all:
            self._replicas.put(replica)
        # a single worker uses all cores; each of several uses one
        threads = 1 if count > 1 else torch.get_num_threads()
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(threads,))

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def gradients(self, packs: Sequence[Pack]) -> tuple[float, Tensor]:
        """Loss and gradients per answer token, over all packs. The vector is reused by the next call."""
        for replica in self._all:
            replica.grads.zero_()
        tokens = sum(len(p.targets) for p in packs)
        # longest first: the cores then finish at about the same time
        ordered = sorted(packs, key=lambda p: len(p.input_ids), reverse=True)
        total = sum(self._pool.map(self._train_one, ordered))
        grads = self._all[0].grads
        for replica in self._all[1:]:
            grads += replica.grads
        return total / tokens, grads.div_(tokens)

    def loss(self, packs: Sequence[Pack]) -> float:
        """Mean loss per answer token, without gradients."""
        return sum(self._pool.map(self._score_one, packs)) / sum(len(p.targets) for p in packs)

    def refresh(self) -> None:
        """Call after the parameters changed."""
        list(self._pool.map(lambda layer: layer.refresh(), self.model.layers))

    def _train_one(self, pack: Pack) -> float:
        replica = self._replicas.get()
        try:
            loss = replica.loss(pack.to(self._device))
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        finally:
            self._replicas.put(replica)

    def _score_one(self, pack: Pack) -> float:
        with torch.no_grad():
            return float(self.model.loss(pack.to(self._device)))
