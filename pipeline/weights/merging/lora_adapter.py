"""The tensors of a PEFT adapter, sorted by what they do to the base, and the changes that they make to weights.

adapter = PeftAdapter(Path("my-adapter"))
adapter.change("model.layers.0.mlp.up_proj").merge(weight)
merged = MergedCheckpoint(base, adapter)  # a checkpoint whose tensors are merged when they are loaded

Sums have a fixed order. Matrix products of libraries are avoided, because they order sums differently on different
CPUs, and the default weights must be the same everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.sources import open_adapter
from pipeline.weights.tensors import Array, CheckpointTensors, TensorSpec
from serving.errors import WeightsError
from serving.weights.adapter_config import AdapterConfig, read_adapter_config

_LORA = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(?:\.default)?(?:\.(weight|bias))?")
_TOKENS = re.compile(r"(.+)\.token_adapter\.trainable_tokens_delta(?:\.default)?")
_COPY = re.compile(r"(.+?)(\.modules_to_save(?:\.default)?|(?:\.token_adapter)?\.base_layer)?\.(weight|bias)")
_UNUSED = re.compile(r".+\.(original_module|token_adapter\.trainable_tokens_original)\..+")
HEAD = "lm_head"  # never stored transposed
_ELEMENTS_AT_ONCE = 2**17  # of a product; they stay in the CPU's cache


@dataclass(slots=True)
class _Layer:
    """The names of one layer's tensors in the adapter."""

    down: str = ""
    up: str = ""
    magnitude: str = ""
    bias: str = ""
    embedding: bool = False


class PeftAdapter:
    """An adapter as PEFT writes it.

    Raises:
        CheckpointError: the folder is not an adapter that can be merged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: AdapterConfig = _read_config(folder)
        self.tensors = open_adapter(folder)
        # Its tensors by the name of the base's tensor that they replace.
        self.copied: dict[str, str] = {}  # whole trained tensors: modules_to_save, biases
        self.beneath: dict[str, str] = {}  # what lies under a LoRA or a resized embedding
        self.tokens: dict[str, str] = {}  # the tensor with trained rows of a layer's weight
        self._layers: dict[str, _Layer] = {}
        for name in self.tensors.specs():
            self._sort(name)
        for layer, parts in self._layers.items():
            if not (parts.down and parts.up):
                raise self._error(f"{layer} has only one of A and B; the adapter is incomplete")
            self._check(layer, parts)
        if self.config.token_indices and not self.tokens:
            raise self._error(
                "trainable_token_indices is set, but no rows of an embedding were saved; it is incomplete"
            )

    def layers(self) -> list[str]:
        """The names of the layers with A and B."""
        return sorted(self._layers)

    def shape(self, layer: str) -> tuple[int, int]:
        """The shape [N, K] that the layer's weight must have in the checkpoint."""
        parts, specs = self._layers[layer], self.tensors.specs()
        outputs, inputs = specs[parts.up].shape[0], specs[parts.down].shape[1]
        return (inputs, outputs) if self._transposed(layer) else (outputs, inputs)

    def change(self, layer: str) -> LoraChange:
        """What the adapter does to the layer's weight.

        Raises:
            CheckpointError: A, B or the magnitude has a value that is not a number.
        """
        parts, transposed = self._layers[layer], self._transposed(layer)
        up, down = self.finite(parts.up), self.finite(parts.down)
        if transposed:
            up, down = np.ascontiguousarray(down.T), np.ascontiguousarray(up.T)
        magnitude = self.finite(parts.magnitude).reshape(-1) if parts.magnitude else None
        return LoraChange(up, down, self.config.scaling_of(layer), magnitude, by_column=transposed)

    def bias(self, layer: str) -> Array | None:
        """What the adapter adds to the layer's bias, if anything."""
        name = self._layers[layer].bias if layer in self._layers else ""
        return self.finite(name) * np.float32(self.config.scaling_of(layer)) if name else None

    def finite(self, name: str) -> Array:
        """One tensor in float32.

        Raises:
            CheckpointError: it has a value that is not a number.
        """
        array = self.tensors.load(name).astype(np.float32)
        if not np.isfinite(array).all():
            raise self._error(f"{name} has values that are not finite; the training has diverged")
        return array

    def spec(self, name: str) -> TensorSpec:
        """The spec of one of the adapter's tensors."""
        return self.tensors.specs()[name]

    def token_rows(self, layer: str) -> tuple[Array, Array]:
        """The indices of the rows of a layer's weight that were trained, and their values [rows, K].

        Raises:
            CheckpointError: the adapter's configuration does not say which, or says it wrongly.
        """
        indices = self.config.token_indices
        if isinstance(indices, dict):
            indices = next((value for key, value in indices.items() if f".{layer}".endswith(f".{key}")), None)
        name = self.tokens[layer]
        spec = self.spec(name)
        if not isinstance(indices, list) or any(type(index) is not int or index < 0 for index in indices):
            raise self._error(f"trainable_token_indices has no list of rows for {layer}, which {name} has")
        if len(spec.shape) != 2 or spec.shape[0] != len(indices):
            raise self._error(f"{name} is {list(spec.shape)} for {len(indices)} trainable_token_indices")
        return np.array(indices, dtype=np.int64), self.finite(name)

    def _sort(self, name: str) -> None:
        inner = name.removeprefix("base_model.model.")
        if inner == name:
            raise self._error(f"{name!r} does not begin with 'base_model.model.'; PEFT did not write this adapter")
        if _UNUSED.fullmatch(inner):
            return
        if match := _LORA.fullmatch(inner):
            layer, kind, leaf = match.groups()
            parts = self._layers.setdefault(layer, _Layer())
            parts.embedding = parts.embedding or kind.startswith("embedding")
            attribute = {"A": "down", "B": "up", "magnitude_vector": "magnitude"}[kind.removeprefix("embedding_")]
            if leaf == "bias":
                attribute = "bias" if attribute == "up" else ""
            if not attribute or getattr(parts, attribute):
                raise self._error(f"{name!r} is not part of a LoRA layer that can be merged")
            setattr(parts, attribute, name)
        elif match := _TOKENS.fullmatch(inner):
            self.tokens[match[1]] = name
        elif (match := _COPY.fullmatch(inner)) and ".lora_" not in inner:
            is_beneath = (match[2] or "").endswith(".base_layer") and match[3] == "weight"
            (self.beneath if is_beneath else self.copied)[f"{match[1]}.{match[3]}"] = name
        else:
            raise self._error(f"{name!r} is unknown; it cannot be merged")

    def _check(self, layer: str, parts: _Layer) -> None:
        """Check that the shapes of a layer's tensors and the configuration fit each other."""
        try:
            rank = self.config.rank_of(layer)
            self.config.scaling_of(layer)  # it can be computed from now on
        except WeightsError as error:
            raise CheckpointError(str(error)) from error
        up, down = self.spec(parts.up).shape, self.spec(parts.down).shape
        for name, shape, found in ((parts.up, up, up[1:]), (parts.down, down, down[:1])):
            if len(shape) != 2 or found != (rank,):
                raise self._error(f"{name} is {list(shape)}, which does not fit the layer's rank {rank}")
        if self.config.dora != bool(parts.magnitude):
            state = "lacks" if self.config.dora else "has"
            raise self._error(f"use_dora is {self.config.dora}, but {layer} {state} a magnitude vector")
        for name in filter(None, (parts.magnitude, parts.bias)):
            shape = self.spec(name).shape
            if int(np.prod(shape)) != up[0]:
                raise self._error(f"{name} is {list(shape)}; the layer has {up[0]} outputs")

    def _transposed(self, layer: str) -> bool:
        return self._layers[layer].embedding or (self.config.fan_in_fan_out and layer != HEAD)

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.folder}: {message}")


def _read_config(folder: Path) -> AdapterConfig:
    try:
        return read_adapter_config(folder)
    except WeightsError as error:
        raise CheckpointError(str(error)) from error


@dataclass(frozen=True, slots=True)
class LoraChange:
    """The change of a weight [N, K] as a checkpoint stores it.

    Attributes:
        up: [N, rank] float32.
        down: [rank, K] float32.
        scaling: factor of their product.
        magnitude: DoRA's norms (Liu et al. 2024), [N] of rows or [K] of columns; None for plain LoRA.
        by_column: whether the norms are those of columns: embeddings, and weights that are stored transposed.
    """

    up: Array
    down: Array
    scaling: float
    magnitude: Array | None = None
    by_column: bool = False

    def delta(self, begin: int, end: int) -> Array:
        """The rows `begin` to `end` of scaling · up down, summed over the rank in order."""
        total = np.empty((end - begin, self.down.shape[1]), dtype=np.float32)
        step = max(1, _ELEMENTS_AT_ONCE // self.down.shape[1])
        for first in range(0, end - begin, step):
            rows = slice(first, min(first + step, end - begin))
            product = _ordered_product(self.up[begin + rows.start : begin + rows.stop], self.down)
            np.multiply(product, np.float32(self.scaling), out=total[rows])
        return total

    def normalize(self, changed: Array, begin: int, column_norms: Array | None = None) -> Array:
        """Give `changed`, the weight's rows from `begin` with their delta, the norms that DoRA trained."""
        if self.magnitude is None:
            return changed
        if self.by_column:
            return np.asarray(changed * (self.magnitude / column_norms))
        norms = np.sqrt(np.square(changed).sum(axis=1))
        norms[np.isinf(norms)] = np.nan  # not weights of zero
        return np.asarray(changed * (self.magnitude[begin : begin + len(changed)] / norms)[:, None])

    @property
    def needs_column_norms(self) -> bool:
        """Whether `normalize` needs the norms of the whole changed weight's columns."""
        return self.magnitude is not None and self.by_column

    def merge(self, weight: Array) -> Array:
        """A whole weight with the change, in float32."""
        changed = weight.astype(np.float32) + self.delta(0, len(weight))
        norms = np.sqrt(np.square(changed).sum(axis=0)) if self.needs_column_norms else None
        return self.normalize(changed, 0, norms)


def _ordered_product(up: Array, down: Array) -> Array:
    """The product of up [n, rank] and down [rank, k], summed over the rank in order."""
    total = up[:, :1] * down[:1]
    term = np.empty_like(total)
    for index in range(1, down.shape[0]):
        np.multiply(up[:, index : index + 1], down[index : index + 1], out=term)
        np.add(total, term, out=total)
    return total


class MergedCheckpoint:
    """A checkpoint with an adapter merged into it; dtypes are not changed.

    Raises:
        CheckpointError: the adapter was trained on a model with other layers, or is more than A and B.
    """

    def __init__(self, base: CheckpointTensors, adapter: PeftAdapter) -> None:
        self._base = base
        self._adapter = adapter
        self._layers = set(adapter.layers())
        specs = base.specs()
        if adapter.tokens or adapter.copied or adapter.beneath:
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


def check_shape(specs: dict[str, TensorSpec], adapter: PeftAdapter, layer: str) -> None:
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
