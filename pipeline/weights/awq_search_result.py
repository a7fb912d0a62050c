"""The result of the AWQ search: its exact elementwise application, its file, and the layers of a search that goes on.

The search itself depends on activations and is not reproducible across machines, so its small result is committed: a
safetensors file with the scales in fp16, the clip steps, two in a byte, and the moments for error feedback in int8; the
rest is JSON in its metadata.

    packed = search.round(name, search.scale(name, weight))
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.weights.atomic import write_json
from pipeline.weights.awq_format import PackedWeight, quantize
from pipeline.weights.error_feedback import Feedback, quantize_with_feedback
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsFile, write_safetensors
from pipeline.weights.tensors import Array, ArraysInMemory

CLIP_STEPS = 20  # AutoAWQ's grid: step i clips to 1 - i / 20 of a group's largest magnitude
_SCALES, _CLIP = ".scales", ".clip_steps"
_NORMS, _FACTORS = ".input_norms", ".input_factors"


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """A vector of scales that divides the outputs of `before` and multiplies the input weights of `after`.

    Args:
        before: the name of a norm, or of a linear layer whose rows are the channels.
        after: the names of the linear layers that read those channels.
        scales: [channels] fp16.
    """

    before: str
    after: tuple[str, ...]
    scales: Array


@dataclass(frozen=True, eq=False)
class AwqSearchResult:
    """Scales and clips by layer name; layers without an entry are not changed. With a group size alone it changes none.

    Args:
        group_size: weights that share a scale and a zero point.
        clip_steps: the steps of the grid for each linear layer, [N, K // group_size] uint8.
        fingerprint: the fingerprint of the checkpoint that was searched; None fits any.
        made_with: versions of the packages that searched, for information.
        feedback_groups: second moments of layers' inputs; the weights of other layers are rounded to nearest.
        sixteen_bits: names of the linear layers that are scaled and not rounded.
    """

    group_size: int
    scale_groups: Sequence[ScaleGroup] = ()
    clip_steps: Mapping[str, Array] = field(default_factory=dict)
    fingerprint: str | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)
    feedback_groups: Sequence[Feedback] = ()
    sixteen_bits: frozenset[str] = frozenset()

    @cached_property
    def feedback(self) -> dict[str, Feedback]:
        """The moments by layer."""
        return {layer: group for group in self.feedback_groups for layer in group.layers}

    @cached_property
    def _divisors(self) -> dict[str, Array]:
        return {group.before: group.scales.astype(np.float32) for group in self.scale_groups}

    @cached_property
    def _multipliers(self) -> dict[str, Array]:
        return {name: group.scales.astype(np.float32) for group in self.scale_groups for name in group.after}

    def scale(self, layer: str, weight: Array) -> Array:
        """The weight of a norm [N] or a linear layer [N, K] with the scales applied, in fp32."""
        weight = weight.astype(np.float32, copy=False)
        if layer in self._multipliers:
            weight = weight * self._multipliers[layer]
        if layer in self._divisors:
            divisor = self._divisors[layer]
            weight = weight / (divisor if weight.ndim == 1 else divisor[:, None])
        return weight

    def scale_bias(self, layer: str, bias: Array) -> Array:
        """The bias [N] of a linear layer in fp32, scaled like the layer's outputs."""
        bias = bias.astype(np.float32, copy=False)
        return bias / self._divisors[layer] if layer in self._divisors else bias

    def clip(self, layer: str, weight: Array) -> Array:
        """The scaled weight [N, K] with each group clipped to a fraction of its largest magnitude."""
        if layer not in self.clip_steps:
            return weight
        groups = weight.reshape(weight.shape[0], -1, self.group_size)
        kept = np.float32(1) - self.clip_steps[layer].astype(np.float32) / np.float32(CLIP_STEPS)
        limit = (np.abs(groups).max(axis=2) * kept)[:, :, None]
        return np.clip(groups, -limit, limit).reshape(weight.shape)

    def round(self, layer: str, weight: Array) -> PackedWeight:
        """The scaled weight [N, K], clipped and rounded to four bits."""
        clipped, feedback = self.clip(layer, weight), self.feedback.get(layer)
        if feedback is None:
            return quantize(clipped, self.group_size)
        return quantize_with_feedback(weight, clipped, self.group_size, feedback)


def save_search_result(path: Path, result: AwqSearchResult) -> None:
    """Write a search result to a file."""
    arrays = {group.before + _SCALES: group.scales for group in result.scale_groups}
    arrays |= {name + _CLIP: _pack_nibbles(steps) for name, steps in result.clip_steps.items()}
    for moments in result.feedback_groups:
        arrays |= {moments.layers[0] + _NORMS: moments.norms, moments.layers[0] + _FACTORS: moments.factors}
    about = {
        "group_size": result.group_size,
        "fingerprint": result.fingerprint,
        "made_with": result.made_with,
        "scale_groups": {group.before: list(group.after) for group in result.scale_groups},
        "feedback": [list(moments.layers) for moments in result.feedback_groups],
        "clip_shapes": {name: list(steps.shape) for name, steps in result.clip_steps.items()},
        "sixteen_bits": sorted(result.sixteen_bits),
    }
    write_safetensors(path, ArraysInMemory(arrays), {"awq_search": json.dumps(about, sort_keys=True)})


def load_search_result(path: Path) -> AwqSearchResult:
    """Read a search result from a file.

    Raises:
        CheckpointError: the file is not a search result.
    """
    file = SafetensorsFile(path)
    try:
        about: dict[str, Any] = json.loads(file.metadata["awq_search"])
        groups = [
            ScaleGroup(before, tuple(after), file.load(before + _SCALES))
            for before, after in about["scale_groups"].items()
        ]
        clip_steps = {
            name: _unpack_nibbles(file.load(name + _CLIP), tuple(shape)) for name, shape in about["clip_shapes"].items()
        }
        feedback = [
            Feedback(tuple(layers), file.load(layers[0] + _NORMS), file.load(layers[0] + _FACTORS))
            for layers in about.get("feedback", ())
        ]
        return AwqSearchResult(
            about["group_size"],
            groups,
            clip_steps,
            about["fingerprint"],
            about["made_with"],
            feedback,
            frozenset(about.get("sixteen_bits", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a result of scripts/quantize_awq: {error!r}") from error


def _pack_nibbles(steps: Array) -> Array:
    flat = np.append(steps.reshape(-1), np.zeros(steps.size % 2, np.uint8)).astype(np.uint8)
    return flat[0::2] | (flat[1::2] << np.uint8(4))


def _unpack_nibbles(packed: Array, shape: tuple[int, ...]) -> Array:
    flat = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).reshape(-1)
    return flat[: int(np.prod(shape))].reshape(shape)


class SearchState:
    """The finished layers of one search, in a folder beside its output, so that a killed search goes on behind them.

    A file layer-N.safetensors has the result of a finished layer, hidden-N.safetensors the inputs of layer N.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, output: Path) -> SearchState:
        """The state of the search whose checkpoint will be `output`."""
        return cls(output.with_name(f".{output.name}.search"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from the folder.

        Raises:
            CheckpointError: another process uses it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(f"{self.folder} is used by another scripts/quantize_awq; wait for it") from error
            yield

    def begin(self, about: Mapping[str, Any]) -> int:
        """Keep the finished layers if they are of the same search, else remove them; returns their number.

        Args:
            about: everything that decides the result: the checkpoint, the texts, the group size, the versions.
        """
        path = self.folder / "about.json"
        if not path.exists() or json.loads(path.read_text("utf-8")) != dict(about):
            for old in (*self.folder.glob("layer-*"), *self.folder.glob("hidden-*")):
                old.unlink()
            write_json(path, dict(about))
        done = 0
        while self._layer(done).exists():
            done += 1
        return done

    def finish_layer(self, layer: int, result: AwqSearchResult, hidden: Array) -> None:
        """Save a layer's result, and the hidden states behind it: the inputs of the next layer."""
        write_safetensors(self._hidden(layer + 1), ArraysInMemory({"hidden": hidden}))
        save_search_result(self._layer(layer), result)  # from here on the layer counts as finished
        self._hidden(layer).unlink(missing_ok=True)

    def hidden(self, layer: int) -> Array:
        """The hidden states that a layer reads. [texts, tokens, hidden size]"""
        return SafetensorsFile(self._hidden(layer)).load("hidden")

    def result(self, layer: int) -> AwqSearchResult:
        """The result of a finished layer."""
        return load_search_result(self._layer(layer))

    def remove(self) -> None:
        """Remove the folder: its result is in the checkpoint."""
        shutil.rmtree(self.folder)

    def _layer(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:03}.safetensors"

    def _hidden(self, layer: int) -> Path:
        return self.folder / f"hidden-{layer:03}.safetensors"
