"""The weights of a live adapter, or of a merge that was not written, a tensor at a time, to compute logits from."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.merging.lora_adapter import PeftAdapter
from pipeline.weights.merging.merge_plan import plan_merge
from pipeline.weights.merging.row_merge import changes_of_rows, decode_rows, merged_rows
from pipeline.weights.merging.sources import open_base
from pipeline.weights.tensors import Array, TensorSpec


class LiveWeights:
    """The base and an adapter together.

    Args:
        base: folder of the unquantized base.
        adapter: folder of the adapter.
        config: config.json of the merged checkpoint.
        double: how the base was rounded while the adapter was trained, as a value of `Rounding`.
        plain: whether to give what a merge without NF4 stores, instead of what was trained.

    Raises:
        CheckpointError: the base is quantized or cannot be read, or the adapter does not fit it.
    """

    def __init__(
        self, base: Path, adapter: Path, config: dict[str, Any], double: bool | None, *, plain: bool = False
    ) -> None:
        self.config = config
        self._adapter = PeftAdapter(adapter)
        self._plan = plan_merge(open_base(base), self._adapter, unquantized_config(base))
        self._double = None if plain else double
        self._plain = plain

    def specs(self) -> dict[str, TensorSpec]:
        """The names and shapes of all tensors."""
        return self._plan.specs()

    def load(self, name: str) -> Array:
        """One tensor in float32."""
        tensor = self._plan.tensors[name]
        with ThreadPoolExecutor(1) as pool:
            merge = changes_of_rows(self._adapter, self._double, name, tensor, pool)
            if merge is None:
                return merged_rows(tensor, pool, lambda data, _: decode_rows(tensor.source_spec, data))
            return merged_rows(tensor, pool, merge.plain if self._plain else merge.live)

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """The named rows of a matrix in float32."""
        return self.load(name)[list(rows)]
