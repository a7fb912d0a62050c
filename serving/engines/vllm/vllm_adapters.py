"""The adapters of the registry in vLLM: loaded and removed at run time, as in the paged engine.

vLLM would drop adapters by itself, and load them again in the middle of a step, where a file that is gone ends the
engine. So it is given room for all, and told to remove them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from serving.adapter_settings import adapter_folders, memory_bytes
from serving.adapters.adapter_companions import check_companions
from serving.adapters.adapter_store import AdapterStore
from serving.adapters.golden import read_golden
from serving.adapters.known_adapters import KnownAdapters
from serving.adapters.registry import DEFAULT_MAX_RANK, MAX_ADAPTERS, AdapterEntry
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engines.vllm.golden_answers import check_golden
from serving.engines.vllm.lora_check import base_shapes, check_lora
from serving.errors import AdapterError
from serving.weights.adapter_files import adapter_digest

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

DEFAULT_MAX_LORAS: Final = 8
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM 0.32 takes as max_lora_rank
Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


@dataclass(frozen=True)
class VllmAdapter:
    """An adapter that vLLM has loaded.

    Args:
        request: vLLM's LoRARequest.
        nbytes: of its tensors.
    """

    request: Any
    nbytes: int


@dataclass(frozen=True)
class VllmLoaded:
    """See `adapter_store.Loaded`."""

    lora: VllmAdapter
    digest: str


def lora_args(settings: Settings, known: KnownAdapters) -> dict[str, Any]:
    """vLLM's engine arguments for adapters; none without them.

    Raises:
        AdapterError: the list has what vLLM does not have.
    """
    if settings.adapters is None and settings.adapter_sources is None:
        return {}
    for name, entry in known.items():
        if entry.combination is not None:
            raise AdapterError(
                f"adapter {name!r}: vLLM takes no combine; write the adapter with scripts/merge_adapters, and list it"
            )
        for field, file in (("draft_model", entry.draft_model), ("draft_heads", entry.draft_heads)):
            if file is not None:
                raise AdapterError(
                    f"adapter {name!r}: {field} would be ignored by vLLM; remove it, or set ENGINE=paged"
                )
    return {
        "enable_lora": True,
        "max_loras": settings.max_loras or DEFAULT_MAX_LORAS,
        "max_cpu_loras": MAX_ADAPTERS,  # ADAPTER_MEMORY_MB is the limit
        "max_lora_rank": _rank_limit(known, takes_sources=settings.adapter_sources is not None),
    }


def _rank_limit(known: Mapping[str, AdapterEntry], *, takes_sources: bool) -> int:
    largest = max([entry.max_rank for entry in known.values()] + ([DEFAULT_MAX_RANK] if takes_sources else []))
    for rank in _RANKS:
        if largest <= rank:
            return rank
    raise AdapterError(f"max_rank: {largest} is more than vLLM has, which is {_RANKS[-1]}; lower it in adapters.yaml")


def open_store(
    settings: Settings, checkpoint: Checkpoint, llm: AsyncLLM, call: Call, send: Call
) -> AdapterStore[VllmAdapter]:
    """The adapters that requests may name.

    Args:
        settings: of the engine.
        checkpoint: of the settings.
        llm: vLLM's client.
        call: runs a coroutine on the client's loop and waits for it.
        send: the same without waiting.
    """
    folders, max_bytes, reading = adapter_folders(settings), memory_bytes(settings), threading.Lock()
    numbers = itertools.count(1)
    shapes = base_shapes(settings.weights_dir)
    end_tokens = checkpoint.tokenizer.eos_token_ids
    passed: set[tuple[str, str]] = set()  # name and digest of those whose golden answers were right

    def load(entry: AdapterEntry) -> VllmLoaded:
        from vllm.lora.request import LoRARequest

        with folders.open(entry) as folder:
            with reading:
                check_companions(folder, entry.task or settings.weights_dir, base=settings.weights_dir)
                nbytes = check_lora(folder, shapes, max_rank=entry.max_rank, max_bytes=max_bytes)
                digest = adapter_digest(folder)
                if entry.digest not in (None, digest):
                    raise AdapterError(f"it has the digest {digest}, not {entry.digest}")
                golden = read_golden(folder) if settings.adapter_golden else ()
                number, place = next(numbers), str(folder.resolve())
                request = LoRARequest(entry.name, number, place)
                call(lambda: llm.add_lora(request))
            # Under another name, by which vLLM's prefix cache tells adapters apart: one that is refused leaves nothing.
            asked = LoRARequest(f"golden prompts of {entry.name}", number, place)
            if (entry.name, digest) not in passed:  # otherwise it was dropped, and is loaded again
                try:
                    call(lambda: check_golden(llm, asked, golden, end_tokens))
                except BaseException:
                    send(lambda: llm.remove_lora(number))
                    raise
                passed.add((entry.name, digest))
            return VllmLoaded(VllmAdapter(request, nbytes), digest)

    def drop(adapter: VllmAdapter) -> None:
        send(lambda: llm.remove_lora(adapter.request.lora_int_id))

    return AdapterStore(checkpoint.adapters, load, max_bytes=max_bytes, on_close=folders.close, drop=drop)
