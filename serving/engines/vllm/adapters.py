"""The adapters of the registry in vLLM: checked, loaded, asked their golden prompts, and removed at run time.

vLLM would drop adapters by itself, and load them again in the middle of a step, where a file that is gone ends the
engine. So it is given room for all, and told to remove them. vLLM loads an adapter in its engine process, which ends
when that fails. So shapes and ranks are compared here first.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serving.adapters.adapter_companions import check_companions
from serving.adapters.adapter_folders import adapter_folders, memory_bytes
from serving.adapters.adapter_store import AdapterStore
from serving.adapters.golden import GoldenPrompt, check_answer, read_golden
from serving.adapters.registry import DEFAULT_MAX_RANK, MAX_ADAPTERS, AdapterEntry, KnownAdapters
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.errors import AdapterError, WeightsError
from serving.models.lora_loader import read_served
from serving.weights.adapter_files import TENSORS, Loaded, adapter_digest
from serving.weights.draft_weights import DRAFT_MODEL
from serving.weights.safetensors_header import read_safetensors_header

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


async def check_golden(llm: AsyncLLM, lora: Any, prompts: Sequence[GoldenPrompt], end_tokens: tuple[int, ...]) -> None:
    """Wait for all answers; to be run on the client's loop.

    Raises:
        WeightsError: an answer differs from the merged model's.
    """
    answers = await asyncio.gather(*(_ask(llm, lora, golden, end_tokens) for golden in prompts))
    for number, (golden, (tokens, ended)) in enumerate(zip(prompts, answers, strict=True), start=1):
        check_answer(number, golden, tokens, ended=ended)


async def _ask(
    llm: AsyncLLM, lora: Any, golden: GoldenPrompt, end_tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        temperature=0,
        max_tokens=golden.max_tokens,
        stop_token_ids=list(end_tokens),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt: Any = {"prompt_token_ids": list(golden.prompt)}
    tokens: Sequence[int] = ()
    async for output in llm.generate(prompt, params, f"golden-{uuid.uuid4().hex}", lora_request=lora):
        tokens = output.outputs[0].token_ids
    answer = tuple(token for token in tokens if token not in end_tokens)
    return answer, len(answer) < len(tokens)


_LAYER: Final = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
Shapes = dict[str, tuple[int, int]]


def base_shapes(weights_dir: Path) -> Shapes:
    """Inputs and outputs of the base's linear layers, by module name, for all formats that say them.

    Raises:
        WeightsError: a file of the base is damaged.
    """
    shapes: Shapes = {}
    for path in sorted(weights_dir.glob("*.safetensors")):
        for name, entry in read_safetensors_header(path).tensors.items():
            module, _, kind = name.rpartition(".")
            if len(entry.shape) != 2:
                continue
            first, second = entry.shape
            if kind == "weight":
                shapes[module] = second, first
            elif kind == "qweight":  # AWQ: eight outputs in a number
                shapes[module] = first, second * 8
            elif kind == "weight_packed":  # compressed-tensors: eight inputs in a number
                shapes[module] = second * 8, first
    return shapes


def check_lora(folder: Path, base: Shapes, *, max_rank: int, max_bytes: int) -> int:
    """Check an adapter by its configuration and the shapes of its tensors; return its bytes.

    Raises:
        WeightsError: it is damaged, too large, of another model, or of a kind that vLLM does not compute.
    """
    config, header, size = read_served(folder, max_bytes)
    path = folder / TENSORS
    for name, entry in header.tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            raise WeightsError(f"{path}: {name} is no part of a linear layer's adapter; merge it: scripts/merge_lora")
        if match[1] not in base:
            raise WeightsError(f"{path}: {name} is of a layer that the base does not have")
        if f"base_model.model.{match[1]}.lora_{'B' if match[2] == 'A' else 'A'}.weight" not in header.tensors:
            raise WeightsError(f"{path}: {match[1]} has only one of A and B; the adapter is incomplete")
        inputs, outputs = base[match[1]]
        rank = config.rank_of(match[1])
        if rank > max_rank:
            raise WeightsError(
                f"{path}: {match[1]} has rank {rank}, the limit is {max_rank}; raise max_rank in adapters.yaml"
            )
        expected = (rank, inputs) if match[2] == "A" else (outputs, rank)
        if entry.shape != expected:
            raise WeightsError(
                f"{path}: {name} is {list(entry.shape)}, this model needs {list(expected)}; was the adapter trained on "
                "another model?"
            )
    return size


DEFAULT_MAX_LORAS: Final = 8
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM 0.32 takes as max_lora_rank
Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


@dataclass(frozen=True)
class VllmAdapter:
    """An adapter that vLLM has loaded: vLLM's LoRARequest, and the bytes of its tensors."""

    request: Any
    nbytes: int


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
        if entry.draft_model is not None:
            raise AdapterError(
                f"adapter {name!r}: draft_model would be ignored by vLLM; put the file into the adapter's folder as "
                f"{DRAFT_MODEL}, or set ENGINE=paged"
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

    `call` runs a coroutine on the loop of vLLM's client and waits for it; `send` does not wait.
    """
    folders, max_bytes, reading = adapter_folders(settings), memory_bytes(settings), threading.Lock()
    numbers = itertools.count(1)
    shapes = base_shapes(settings.weights_dir)
    end_tokens = checkpoint.tokenizer.eos_token_ids
    passed: set[tuple[str, str]] = set()  # name and digest of those whose golden answers were right

    def load(entry: AdapterEntry) -> Loaded[VllmAdapter]:
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
            return Loaded(VllmAdapter(request, nbytes), digest)

    def drop(adapter: VllmAdapter) -> None:
        send(lambda: llm.remove_lora(adapter.request.lora_int_id))

    return AdapterStore(checkpoint.adapters, load, max_bytes=max_bytes, on_close=folders.close, drop=drop)
