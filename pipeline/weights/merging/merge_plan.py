"""Plans a merge: which tensors the result has, where each comes from, what changes it, and which file it goes to.

The embedding and the head may be one tensor in the base ("tied"). Where an adapter changes only one of them, or each
in its own way, the result has both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.weights.atomic import write_json
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.lora_adapter import HEAD, PeftAdapter, check_shape
from pipeline.weights.merging.sources import TensorSource
from pipeline.weights.tensors import TensorSpec

HEAD_WEIGHT = f"{HEAD}.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_NEVER_NF4 = ("embed", "wte", "wpe", "lm_head")  # parts of names of matrices that bitsandbytes leaves alone
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the result.

    Attributes:
        source: the files that it is read from.
        source_name: its name there.
        lora: the layer whose A and B change it.
        tokens: the layer of which single rows are replaced.
        bias: the layer of which a LoRA bias is added.
        linear: whether QLoRA would quantize it.
        copied: whether the source is the adapter, which has the whole tensor.
    """

    spec: TensorSpec
    source: TensorSource
    source_name: str
    lora: str | None = None
    tokens: str | None = None
    bias: str | None = None
    linear: bool = False
    copied: bool = False

    @property
    def source_spec(self) -> TensorSpec:
        """The spec of what is read."""
        return self.source.specs()[self.source_name]

    @property
    def changed(self) -> bool:
        """Whether the adapter has a part in it."""
        return bool(self.lora or self.tokens or self.bias) or self.copied


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The tensors of the result by name.

    Attributes:
        tensors: the tensors in the base's order.
        untied: whether embedding and head were one tensor and are two now.
        rows: the number of rows of the embedding; None if the checkpoint has none.
        vocabulary: `rows`, if the adapter has changed it.
    """

    tensors: dict[str, PlannedTensor]
    untied: bool
    rows: int | None
    vocabulary: int | None

    def specs(self) -> dict[str, TensorSpec]:
        """The specs of the result."""
        return {name: tensor.spec for name, tensor in self.tensors.items()}


def plan_merge(base: TensorSource, adapter: PeftAdapter, config: dict[str, Any]) -> MergePlan:
    """What a merge of the adapter into the base writes.

    Raises:
        CheckpointError: the adapter was trained on a model with other layers.
    """
    specs = base.specs()
    tensors = {name: PlannedTensor(spec, base, name, linear=_is_linear(name, spec)) for name, spec in specs.items()}
    embedding = next((name for name in specs if name.endswith(_EMBEDDINGS)), None)
    tied = embedding is not None and (bool(config.get("tie_word_embeddings")) or HEAD_WEIGHT not in specs)
    untied = False
    if embedding is not None and tied:
        tensors.pop(HEAD_WEIGHT, None)
        if untied := _differ(adapter, embedding):
            tensors[HEAD_WEIGHT] = replace(tensors[embedding])
    _copy(tensors, adapter, embedding, tied)
    for layer in adapter.layers():
        if untied or not (tied and layer == HEAD):
            _add_lora(tensors, adapter, layer)
    for layer in adapter.tokens:
        if tied and not untied and layer == HEAD:
            continue  # its rows are the embedding's
        _add_tokens(tensors, adapter, layer)
    rows = _rows(tensors, embedding)
    resized = embedding is not None and rows != specs[embedding].shape[0]
    return MergePlan(tensors, untied, rows, rows if resized else None)


def _differ(adapter: PeftAdapter, embedding: str) -> bool:
    """Whether the adapter makes a tied embedding and head different."""
    layer = embedding.removesuffix(".weight")
    if {layer, HEAD} & set(adapter.layers()):
        return not _same_change(adapter, layer)
    if HEAD in adapter.tokens and not _same_rows(adapter, layer):
        return True
    mine, its = (adapter.copied.get(name) or adapter.beneath.get(name) for name in (embedding, HEAD_WEIGHT))
    if mine is None and its is None:
        return False  # trained rows of a tied embedding are those of the head too
    return mine is None or its is None or not _same(adapter, mine, its)


def _same_change(adapter: PeftAdapter, layer: str) -> bool:
    """Whether embedding and head have the same LoRA, as PEFT's ensure_weight_tying makes them."""
    if not {layer, HEAD} <= set(adapter.layers()):
        return False
    mine, its = adapter.change(layer), adapter.change(HEAD)
    plain = mine.magnitude is None and its.magnitude is None and mine.scaling == its.scaling
    return plain and mine.up.shape == its.up.shape and bool((mine.up == its.up).all() and (mine.down == its.down).all())


def _same_rows(adapter: PeftAdapter, layer: str) -> bool:
    """Whether the trained rows of the head are those of the embedding, as PEFT saves them for tied ones."""
    if layer not in adapter.tokens:
        return False
    mine, its = adapter.token_rows(layer), adapter.token_rows(HEAD)
    return all(np.array_equal(one, other) for one, other in zip(mine, its, strict=True))


def _same(adapter: PeftAdapter, one: str, other: str) -> bool:
    """Whether two of the adapter's tensors are equal; parts of them are read at a time."""
    spec, read = adapter.spec(one), adapter.tensors.read
    if spec != adapter.spec(other):
        return False
    steps = range(0, spec.nbytes, 2**23)
    return all(
        read(one, at, min(at + 2**23, spec.nbytes)) == read(other, at, min(at + 2**23, spec.nbytes)) for at in steps
    )


def _copy(tensors: dict[str, PlannedTensor], adapter: PeftAdapter, embedding: str | None, tied: bool) -> None:
    """Replace the base's tensors by those that the adapter has whole."""
    for module in adapter.config.saved:
        if any(_is_of(name, module) for name in tensors) and not any(_is_of(name, module) for name in adapter.copied):
            raise CheckpointError(
                f"{adapter.folder}: modules_to_save has {module}, which was not saved; it is incomplete"
            )
    if embedding in adapter.beneath and HEAD_WEIGHT in tensors and tied:  # the head was tied to what lies beneath
        adapter.beneath.setdefault(HEAD_WEIGHT, adapter.beneath[embedding])
    for name, its in {**adapter.beneath, **adapter.copied}.items():
        if tied and name == HEAD_WEIGHT and name not in tensors:
            continue  # it is still tied
        if name not in tensors:
            raise CheckpointError(
                f"{adapter.folder}: the adapter has trained {its}, but the base has no {name}; give the base that it "
                "was trained on. Heads of classifiers cannot be merged into a language model"
            )
        spec, shape = tensors[name].spec, adapter.spec(its).shape
        resized = name in (embedding, HEAD_WEIGHT) and len(shape) == 2 and shape[1:] == spec.shape[1:]
        if shape != spec.shape and not resized:
            raise CheckpointError(f"{adapter.folder}: {its} is {list(shape)}, the base's {name} is {list(spec.shape)}")
        tensors[name] = PlannedTensor(TensorSpec(spec.dtype, shape), adapter.tensors, its, copied=True)


def _is_of(name: str, module: str) -> bool:
    """Whether a tensor belongs to a module that modules_to_save names."""
    return f".{name.rpartition('.')[0]}".endswith(f".{module}")


def _add_lora(tensors: dict[str, PlannedTensor], adapter: PeftAdapter, layer: str) -> None:
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    check_shape({name: tensor.spec for name, tensor in tensors.items() if name == weight}, adapter, layer)
    tensors[weight] = replace(tensors[weight], lora=layer)
    if adapter.bias(layer) is not None:
        if bias not in tensors:
            raise CheckpointError(
                f"the adapter adds a bias to {layer} (lora_bias), but the base has no {bias}; train without"
            )
        tensors[bias] = replace(tensors[bias], bias=layer)


def _add_tokens(tensors: dict[str, PlannedTensor], adapter: PeftAdapter, layer: str) -> None:
    weight = f"{layer}.weight"
    rows, values = adapter.token_rows(layer)
    shape = tensors[weight].spec.shape if weight in tensors else None
    if shape is None or values.shape[1:] != shape[1:] or (len(rows) and int(rows.max()) >= shape[0]):
        actual = "no such tensor" if shape is None else list(shape)
        raise CheckpointError(
            f"the adapter trains rows up to {rows.max(initial=0)} of {weight} with {values.shape[1]} columns, the base "
            f"has {actual}; it was trained on another model, or its resized embedding was not saved"
        )
    tensors[weight] = replace(tensors[weight], tokens=layer)


def _rows(tensors: dict[str, PlannedTensor], embedding: str | None) -> int | None:
    """The number of rows of the embedding, and of the head."""
    if embedding is None:
        return None
    rows, head = tensors[embedding].spec.shape[0], tensors.get(HEAD_WEIGHT)
    if head is not None and head.spec.shape[0] != rows:
        raise CheckpointError(
            f"the merged {embedding} would have {rows} rows and {HEAD_WEIGHT} {head.spec.shape[0]}; save the adapter "
            "again with save_embedding_layers=True, which saves both"
        )
    return rows


def _is_linear(name: str, spec: TensorSpec) -> bool:
    """Whether bitsandbytes quantizes this tensor: the matrices of all linear layers except the head."""
    matrix = name.endswith(".weight") and len(spec.shape) == 2 and spec.dtype in ("F32", "F16", "BF16")
    return matrix and not any(part in name for part in _NEVER_NF4)


def parse_size(text: str) -> int:
    """A size such as 5GB in bytes.

    Raises:
        CheckpointError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", text.strip().upper())
    size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if size < 1:
        raise CheckpointError(f"{text!r} is not a size; give one such as 5GB or 500MB")
    return size


def plan_shards(specs: dict[str, TensorSpec], of_base: dict[str, list[str]], limit: int | None) -> dict[str, list[str]]:
    """The names of each file's tensors.

    Args:
        of_base: the names of the tensors in each of the base's files.
        limit: the largest size of a file in bytes, exceeded only by a tensor that is larger itself; None keeps the
            base's files. A tensor that the base does not have then goes to the last file.
    """
    known = {name for names in of_base.values() for name in names}
    ordered = [name for names in of_base.values() for name in names if name in specs]
    ordered += sorted(specs.keys() - known)
    if limit is None:
        shards = {file: [name for name in names if name in specs] for file, names in of_base.items()}
        shards = {file: names for file, names in shards.items() if names}
        shards[list(shards)[-1]] += ordered[len(ordered) - len(specs.keys() - known) :]
        return shards
    groups: list[list[str]] = [[]]
    size = 0
    for name in ordered:
        if groups[-1] and size + specs[name].nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += specs[name].nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": names for i, names in enumerate(groups, start=1)}


def write_index(folder: Path, specs: dict[str, TensorSpec], shards: dict[str, list[str]]) -> None:
    """Write the index, unless the only file is model.safetensors."""
    if list(shards) == ["model.safetensors"]:
        return
    weight_map = {name: file for file, names in shards.items() for name in names}
    total = sum(spec.nbytes for spec in specs.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)
