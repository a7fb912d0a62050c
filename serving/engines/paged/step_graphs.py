"""Records passes of the model as CUDA graphs, and replays them in steps with few rows, which launches would slow down.

There is one recording for each of some numbers of rows; a step uses the smallest that holds it, and the rest of its
rows is padding. The logits are not in it: how many rows have any differs from step to step.

    graphs = StepGraphs(forward, CudaRecorder(), max_seqs=32, max_blocks=512, device="cuda")
    graphs.record(progress)
    hidden = graphs.run(batch)  # None: there is no recording for it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

import torch
from torch import Tensor

from serving.engines.paged.step_batch import Batch, PaddedInputs

# Kernels compute tiles of 16, 32 and 64 rows, so more sizes would save little.
ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
# Each recording has programs for the longest context, most of which end at once. Longer ones are not replayed.
MAX_CONTEXT: Final = 16_384


class Recorder(Protocol):
    """Records work on the device."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """Run it, record it, and return its output and a call that does the same on the same addresses.

        The call writes to the output that is returned here. What Python decides in `run` is decided once.
        """
        ...

    def seconds(self, replay: Callable[[], object]) -> float:
        """How long the device takes for a call that `record` returned."""
        ...


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: PaddedInputs
    hidden: Tensor
    replay: Callable[[], object]


class StepGraphs:
    """The recordings of a model.

    Args:
        forward: the model's pass; it must not wait for the device.
        recorder: the recorder of the device.
        max_seqs: requests in a step.
        max_blocks: blocks of a request in a recording.
        device: torch's name of the device.
        rows: sizes of recordings, ascending.
    """

    def __init__(
        self,
        forward: Callable[[PaddedInputs], Tensor],
        recorder: Recorder,
        *,
        max_seqs: int,
        max_blocks: int,
        device: str,
        rows: tuple[int, ...] = ROWS,
    ) -> None:
        self._forward = forward
        self._recorder = recorder
        self._max_seqs = max_seqs
        self._max_blocks = max_blocks
        self._device = device
        self._rows = rows
        self._recordings: list[_Recording] = []  # by rows, ascending

    def record(self, progress: Callable[[int, int], None]) -> list[tuple[int, float]]:
        """Record all sizes, the largest first, so that the others find its memory.

        `progress` is called with the number of recordings made, and how many there will be.

        Returns:
            The rows of each recording, ascending, and the seconds of a replay that is all padding.
        """
        for done, rows in enumerate(reversed(self._rows), start=1):
            seqs = min(rows, self._max_seqs)  # each has a row
            inputs = PaddedInputs(rows=rows, seqs=seqs, blocks=self._max_blocks, device=self._device)
            hidden, replay = self._recorder.record(lambda inputs=inputs: self._forward(inputs))  # type: ignore[misc]
            self._recordings.insert(0, _Recording(inputs, hidden, replay))
            progress(done, len(self._rows))
        return [(one.inputs.rows, self._recorder.seconds(one.replay)) for one in self._recordings]

    def run(self, batch: Batch) -> Tensor | None:
        """Hidden states [rows of the batch, hidden], valid until the next call; None if no recording holds it."""
        found = next((one for one in self._recordings if one.inputs.holds(batch)), None)
        if found is None:
            return None
        found.inputs.fill(batch)
        found.replay()
        return found.hidden[: len(batch.input_ids)]


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
