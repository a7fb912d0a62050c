"""Records CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

import torch
from torch import Tensor

_REPEATS: Final = 5


class CudaRecorder:
    """See `Recorder`. All graphs share their memory, as they never run at once; outputs are kept apart."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """See `Recorder.record`. The first run compiles the kernels, which a recording forbids."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            run()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()
        return output, graph.replay

    def seconds(self, replay: Callable[[], object]) -> float:
        """See `Recorder.seconds`; by CUDA's events, after one replay that does not count."""
        replay()
        times = []
        for _ in range(_REPEATS):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            replay()
            ended.record()
            ended.synchronize()
            times.append(begun.elapsed_time(ended) / 1000)
        return float(median(times))
