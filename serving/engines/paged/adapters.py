"""Loads the adapters that requests may name: matrices, draft models, combinations, golden answers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from types import MappingProxyType

import torch

from serving.adapters.adapter_companions import check_companions
from serving.adapters.adapter_folders import adapter_folders, memory_bytes
from serving.adapters.adapter_store import AdapterStore
from serving.adapters.combination import Combination
from serving.adapters.combine import LowRank, combine_layer
from serving.adapters.golden import GoldenPrompt, check_answer, read_golden
from serving.adapters.registry import AdapterEntry
from serving.config import Settings
from serving.drafting.draft_model import DraftModel
from serving.drafting.load_drafter import DraftModelLoader
from serving.engines.paged.core import EngineCore
from serving.engines.paged.request import Request
from serving.errors import AdapterError
from serving.kernels.lora import LoraAdapter, LoraMatrices, Projection
from serving.models.llama import ModelWeights
from serving.models.lora_loader import layer_name, load_lora
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationRequest, SamplingParams
from serving.weights.adapter_files import Loaded
from serving.weights.draft_weights import DRAFT_MODEL


def open_adapters(
    settings: Settings,
    known: Mapping[str, AdapterEntry],
    weights: ModelWeights,
    models: DraftModelLoader,
    ask_golden: Callable[[str, LoraAdapter, Sequence[GoldenPrompt]], None],
    tokenizers: Mapping[str, Tokenizer] = MappingProxyType({}),
) -> AdapterStore[LoraAdapter]:
    """The adapters that requests may name, of which the pinned ones are loaded.

    `ask_golden` asks an adapter its golden prompts, and raises if an answer is wrong. `tokenizers` are those of
    adapters that add tokens to the model's.

    Raises:
        AdapterError: a pinned adapter cannot be loaded.
    """
    folders, max_bytes = adapter_folders(settings), memory_bytes(settings)
    reading = threading.BoundedSemaphore(2)  # whole files are in memory meanwhile
    passed: set[tuple[str, str]] = set()  # name and digest of those whose golden answers were right

    def load(entry: AdapterEntry) -> Loaded[LoraAdapter]:
        with folders.open(entry) as folder:
            with reading:
                check_companions(folder, entry.task or settings.weights_dir, base=settings.weights_dir)
                loaded = load_lora(folder, weights.decoder, max_rank=entry.max_rank, max_bytes=max_bytes)
                golden = read_golden(folder) if settings.adapter_golden else ()
            known_good = (entry.name, loaded.digest) in passed  # it was dropped, and is loaded again
            if not known_good and entry.digest in (None, loaded.digest):  # with another one the store refuses it
                ask_golden(entry.name, loaded.lora, golden)
                passed.add((entry.name, loaded.digest))
            return add_drafts(entry, loaded, folder)

    def add_drafts(entry: AdapterEntry, loaded: Loaded[LoraAdapter], folder: Path | None) -> Loaded[LoraAdapter]:
        if settings.speculation == "off":
            return loaded
        path = entry.draft_model
        if path is None and folder is not None and (folder / DRAFT_MODEL).is_file():
            path = folder / DRAFT_MODEL
        if path is None:
            return loaded
        model = models.load(path, tokenizers.get(entry.name))
        return Loaded(DraftingAdapter(loaded.lora.layers, model), loaded.digest)

    def combine(entry: AdapterEntry, parts: Mapping[str, Loaded[LoraAdapter]]) -> Loaded[LoraAdapter]:
        return add_drafts(entry, combine_adapters(entry, parts), None)

    store = AdapterStore(known, load, combine=combine, max_bytes=max_bytes, on_close=folders.close)
    store.load_pinned()
    return store


@dataclass(frozen=True, eq=False)
class DraftingAdapter(LoraAdapter):
    """An adapter and the draft model that was trained for it."""

    draft_model: DraftModel

    @property
    def nbytes(self) -> int:
        """Memory of both."""
        return super().nbytes + self.draft_model.nbytes


def draft_model_of(lora: LoraAdapter | None) -> DraftModel | None:
    """The draft model of a request's adapter; None without."""
    return lora.draft_model if isinstance(lora, DraftingAdapter) else None


def combine_adapters(entry: AdapterEntry, parts: Mapping[str, Loaded[LoraAdapter]]) -> Loaded[LoraAdapter]:
    """The entry's combination of the parts, which are by name and all for one model.

    A layer has the widest type of its parts; the digest is that of the parts and the recipe.

    Raises:
        AdapterError: they cannot be combined, or a rank is over the entry's limit.
    """
    combination = entry.combination
    assert combination is not None
    layers = tuple(
        tuple(
            _combine(
                layer_name(number, projection),
                {name: part.lora.layers[number][projection] for name, part in parts.items()},
                combination,
            )
            for projection in Projection
        )
        for number in range(len(next(iter(parts.values())).lora.layers))
    )
    lora = LoraAdapter(layers)
    if lora.max_rank > entry.max_rank:
        raise AdapterError(f"the result has rank {lora.max_rank}, the limit is {entry.max_rank}; raise its max_rank")
    content = f"{asdict(combination)} {[parts[name].digest for name in combination.names]}"
    return Loaded(lora, f"sha256:{hashlib.sha256(content.encode()).hexdigest()}")


def _combine(layer: str, parts: Mapping[str, LoraMatrices], combination: Combination) -> LoraMatrices:
    """One projection; rank 0 where none of the adapters changes it."""
    changes = {name: LowRank(part.down, part.up.T, part.scaling) for name, part in parts.items() if part.rank}
    if not changes:
        return next(iter(parts.values()))
    dtype = reduce(torch.promote_types, (part.a.dtype for part in changes.values()))
    combined = combine_layer(layer, changes, combination).to(dtype)
    return LoraMatrices(combined.a.contiguous(), combined.b.T.contiguous(), combined.scaling)


def check_golden(
    core: EngineCore,
    check_fit: Callable[[GenerationRequest], None],
    name: str,
    lora: LoraAdapter,
    prompts: Sequence[GoldenPrompt],
) -> None:
    """Ask an adapter its golden prompts, in a batch with the requests that run; to be called in a thread of its own.

    `check_fit` raises if a request, which names no adapter, could never be answered.

    Raises:
        WeightsError: an answer differs from the merged model's.
        ServingError: a prompt cannot be answered.
    """

    async def ask(golden: GoldenPrompt) -> tuple[tuple[int, ...], bool]:
        request = GenerationRequest(
            f"golden-{secrets.token_hex(8)}", golden.prompt, SamplingParams(max_tokens=golden.max_tokens)
        )
        check_fit(request)
        # Under a name of its own, which no request can have: if the adapter is refused, nothing that it computed is
        # found later in the prefix cache.
        named = replace(request, adapter=f"golden prompts of {name}")
        stream = core.open(request.request_id)
        tokens: list[int] = []
        try:
            core.submit(stream, Request(named, seed=0, lora=lora))
            while True:
                event = await core.receive(stream)
                tokens += event.token_ids
                if event.finish_reason is not None:
                    return tuple(tokens), event.finish_reason is FinishReason.STOP
        finally:
            core.discard(stream)

    async def ask_all() -> list[tuple[tuple[int, ...], bool]]:
        return await asyncio.gather(*map(ask, prompts))

    answers = asyncio.run(ask_all()) if prompts else []
    for number, (golden, (tokens, ended)) in enumerate(zip(prompts, answers, strict=True), start=1):
        check_answer(number, golden, tokens, ended=ended)
