"""Where a check runs, and how much it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from serving.kernels.base import Activations, Kernels
from serving.kernels.select import Device, create_kernels
from serving.kernels.triton.tiles import TileSizes


@dataclass(frozen=True, slots=True)
class Place:
    """A machine with a GPU, or without one.

    Args:
        weights: the checkpoint to measure.
        has_gpu: whether everything runs on a GPU; otherwise Triton's kernels are interpreted, and passes are the CPU's.
        quick: a few seconds for each row.
    """

    weights: Path
    has_gpu: bool
    quick: bool

    @property
    def model_device(self) -> Device:
        """What computes the model."""
        return Device.CUDA if self.has_gpu else Device.CPU

    @property
    def torch_name(self) -> str:
        """Where torch has the tensors."""
        return self.model_device.torch_name

    def triton_kernels(self, *, half: bool) -> Kernels:
        """Triton's kernels: compiled, with the engine's tiles; or interpreted, with small ones, as it takes long.

        Raises:
            EngineNotAvailableError, SettingError: see `create_kernels`.
        """
        if self.has_gpu:
            return create_kernels(Device.CUDA, activations=Activations.BFLOAT16 if half else Activations.FLOAT32)
        create_kernels(Device.TRITON_INTERPRETER)  # checks that triton is there, and has it imported to interpret
        from serving.kernels.triton.triton_kernels import TritonKernels

        small = TileSizes(columns=32, inputs=64, dense_inputs=32, split_inputs=128, keys=16, split_keys=64)
        return TritonKernels("cpu", half=half, tiles=small)

    def precisions(self) -> Iterator[tuple[Kernels, bool, str]]:
        """Triton's kernels with DTYPE=auto's rounding and, unless it should be quick, without any.

        Yields:
            The kernels, whether they round, and the name of the precision.

        Raises:
            EngineNotAvailableError, SettingError: see `triton_kernels`.
        """
        for half in (True,) if self.quick else (True, False):
            yield self.triton_kernels(half=half), half, "float16" if half else "float32"

    def settle(self) -> None:
        """Wait for the GPU, if there is one."""
        if self.has_gpu:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], repeats: int) -> float:
        """The median time of a call, after one that does not count."""
        run()
        self.settle()
        found = []
        for _ in range(repeats):
            begun = time.perf_counter()
            run()
            self.settle()
            found.append(time.perf_counter() - begun)
        return median(found)
