"""Trained heads in memory with the adapter that they draft for, so that they come and go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from serving.adapters.registry import AdapterEntry
from serving.drafting.draft_heads import DraftHeads
from serving.drafting.drafter import Heads
from serving.kernels.lora import LoraAdapter
from serving.models.lora_loader import LoadedAdapter


@dataclass(frozen=True, eq=False)
class AdapterWithHeads(LoraAdapter):
    """An adapter and the heads that were trained for it."""

    heads: DraftHeads

    @property
    def nbytes(self) -> int:
        """Memory of both."""
        return super().nbytes + self.heads.nbytes


def with_heads(entry: AdapterEntry, loaded: LoadedAdapter, model_head: Tensor) -> LoadedAdapter:
    """The adapter with the heads that its entry lists; unchanged if it lists none.

    Args:
        entry: of the list.
        loaded: the adapter.
        model_head: [vocab, hidden] of the base.

    Raises:
        WeightsError: the heads' file is damaged, or of another model.
    """
    if entry.draft_heads is None:
        return loaded
    heads = DraftHeads.load(entry.draft_heads, model_head)
    return LoadedAdapter(AdapterWithHeads(loaded.lora.layers, heads), loaded.digest)


def heads_of(lora: LoraAdapter | None, prompt: Sequence[int]) -> Heads | None:
    """The heads of a request's adapter, for this request; None without."""
    return lora.heads.begin(prompt) if isinstance(lora, AdapterWithHeads) else None
