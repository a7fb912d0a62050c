"""The place where a check runs: its kernels, its clocks, and how much time is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from serving.engines.paged.step_graphs import CudaRecorder
from serving.kernels.base import Kernels
from serving.kernels.triton.tiles import TileSizes

if TYPE_CHECKING:
    from serving.engines.paged.step_graphs import Recorder

_REPEATS = 3  # medians of several replays each


@dataclass(frozen=True, slots=True)
class Place:
    """A machine with a GPU, or without one: then Triton's kernels are interpreted on the CPU.

    Args:
        has_gpu: whether torch sees one.
        deadline: of the stage, by `time.monotonic`.
    """

    has_gpu: bool
    deadline: float

    @property
    def device(self) -> str:
        """The device on which torch has the tensors."""
        return "cuda" if self.has_gpu else "cpu"

    @property
    def is_late(self) -> bool:
        """Whether the stage should end."""
        return time.monotonic() > self.deadline

    def kernels(self, *, half: bool, tiles: TileSizes | None = None) -> Kernels:
        """Triton's kernels, by default with the engine's tiles."""
        from serving.kernels.triton.kernels import TritonKernels  # it reads TRITON_INTERPRET

        return TritonKernels(self.device, half=half, tiles=tiles)

    def modes(self) -> Iterator[tuple[Kernels, str, bool]]:
        """The kernels with DTYPE=auto's rounding and without any: kernels, name, whether they round."""
        yield self.kernels(half=True), "float16", True
        yield self.kernels(half=False), "float32", False

    def recorder(self) -> Recorder:
        """Records graphs, or runs again what it has recorded."""
        return CudaRecorder() if self.has_gpu else _Rerun()

    def seconds(self, runs: Sequence[Callable[[], object]]) -> float:
        """The median time of one of these calls, which follow each other in one CUDA graph, by events around replays.

        Several calls with inputs of their own keep a small input out of the cache. On a CPU they are called once.
        """
        recorder = self.recorder()

        def all_of_them() -> Tensor:
            for run in runs:
                run()
            return torch.empty(0)

        _, replay = recorder.record(all_of_them)
        return median(recorder.seconds(replay) for _ in range(_REPEATS if self.has_gpu else 1)) / len(runs)

    def host_seconds(self, run: Callable[[], object], repeats: int = 20) -> float:
        """The median time until a call returns, which may be before the GPU is done."""
        times = []
        for _ in range(repeats if self.has_gpu else 1):
            self.settle()
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        self.settle()
        return median(times)

    def settle(self) -> None:
        """Wait for the GPU, if there is one."""
        if self.has_gpu:
            torch.cuda.synchronize()


class _Rerun:
    """See `Recorder`: a replay runs all again."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """See `Recorder.record`."""
        output = run()
        return output, lambda: output.copy_(run())

    def seconds(self, replay: Callable[[], object]) -> float:
        """See `Recorder.seconds`."""
        begun = time.perf_counter()
        replay()
        return time.perf_counter() - begun


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let torch fill all memory that it gives uninitialized: with NaN, or with the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # which has torch.utils.deterministic fill it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@cache
def copy_rate(device: str) -> float:
    """Bytes a second, read and written, while a tensor much larger than any cache is copied."""
    place = Place(device == "cuda", time.monotonic())
    source = torch.randint(0, 1 << 30, ((1 << 29) if place.has_gpu else (1 << 22),), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / place.seconds([lambda: target.copy_(source)])
