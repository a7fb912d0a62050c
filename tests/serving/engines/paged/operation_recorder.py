"""A stand-in for CUDA graphs on the CPU: records each operation of torch and each kernel, and runs them again.

Like a graph, it knows no Python: a replay does what was recorded to the addresses that were recorded. Reading a value
of a tensor while recording fails, as it does in CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from serving.kernels.triton import attention, kernels, matmul

LAUNCHERS = (attention, kernels, matmul)
READS = tuple(operation.default for operation in (torch.ops.aten.item, torch.ops.aten._local_scalar_dense))


class ReadWhileRecordingError(Exception):
    """Python asked for a value that the device has not computed yet."""


class OperationRecorder:
    """See `Recorder`."""

    def __init__(self) -> None:
        self.recorded: list[int] = []  # operations of each recording

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """See `Recorder.record`. Outputs are poisoned after the recording, which computes nothing in CUDA."""
        run()  # as in CUDA, before the recording
        tape = _Tape()
        launch = kernels.launch
        for module in LAUNCHERS:
            module.launch = tape.launch(launch)
        try:
            with tape:
                output = run()
        finally:
            for module in LAUNCHERS:
                module.launch = launch
        self.recorded.append(len(tape.steps))
        tape.poison()
        return output, tape.replay

    def seconds(self, replay: Callable[[], object]) -> float:
        """See `Recorder.seconds`; nothing is measured."""
        return 1.0


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []
        self._made: list[Tensor] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation in READS:
            raise ReadWhileRecordingError(str(operation))
        result = operation(*args, **kwargs)
        given = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
        if not isinstance(result, Tensor) or any(result is argument for argument in given):
            self.steps.append(lambda: operation(*args, **kwargs))
        elif _memory(result) in map(_memory, given):
            pass  # a view of memory that the recording knows
        elif "empty" in operation.name():
            self._made.append(result)
        else:
            self._made.append(result)
            self.steps.append(lambda: result.copy_(operation(*args, **kwargs)))
        return result

    def launch(self, launch: Callable[..., None]) -> Callable[..., None]:
        """Records a launch, whose own operations on tensors are not recorded."""

        def recorded(*args: Any, **constants: Any) -> None:
            def again() -> None:
                with _disable_current_modes():
                    launch(*args, **constants)

            again()
            self.steps.append(again)

        return recorded

    def poison(self) -> None:
        """Overwrite all that the recording has made."""
        for tensor in self._made:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)

    def replay(self) -> None:
        """Do what was recorded."""
        for step in self.steps:
            step()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
