"""A checkpoint with a plain LoRA adapter merged into its tensors when they are loaded, in memory.

merged = MergedCheckpoint(base, LoraAdapter(Path("examples/honeycomb/small")))
"""

from __future__ import annotations

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, Checkpoint, TensorSpec

from .lora_adapter import LoraAdapter


class MergedCheckpoint:
    """A checkpoint with an adapter merged into it; dtypes are not changed.

    Raises:
        CheckpointError: the adapter was trained on a model with other layers, or is more than A and B.
    """

    def __init__(self, base: Checkpoint, adapter: LoraAdapter) -> None:
        self._base = base
        self._adapter = adapter
        self._layers = set(adapter.layers())
        specs = base.specs()
        if adapter.tokens or adapter.copies.copied or adapter.copies.beneath:
            raise CheckpointError(
                f"{adapter.folder} has whole tensors beside A and B; merge it with scripts/merge_lora"
            )
        for layer in self._layers:
            check_shape(specs, adapter, layer)

    def specs(self) -> dict[str, TensorSpec]:
        """The base's specs."""
        return self._base.specs()

    def load(self, name: str) -> Array:
        """One tensor; if the adapter changes it, merged in fp32."""
        layer, tensor = name.removesuffix(".weight"), self._base.load(name)
        return self._adapter.change(layer).merge(tensor) if layer in self._layers else tensor


def check_shape(specs: dict[str, TensorSpec], adapter: LoraAdapter, layer: str) -> None:
    """Check that a checkpoint has the layer as the adapter changes it.

    Raises:
        CheckpointError: it has not.
    """
    spec, shape = specs.get(f"{layer}.weight"), adapter.shape(layer)
    if spec is None or spec.shape != shape:
        actual = "no such layer" if spec is None else list(spec.shape)
        raise CheckpointError(
            f"the adapter changes {layer} {list(shape)}, the base has {actual}; it was trained on another model"
        )
