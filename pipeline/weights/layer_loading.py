"""A transformers model without weights, of which one decoder layer at a time is read from a checkpoint.

It runs with transformers 5, and in .venv-awq with 4.51, the last release that AutoAWQ knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, CheckpointTensors

_EMBEDDING = "model.embed_tokens.weight"


class RowSource(CheckpointTensors, Protocol):
    """A checkpoint that can also read single rows."""

    def load_rows(self, name: str, rows: Sequence[int]) -> Array:
        """The named rows of a matrix, in the order given."""
        ...


class ModelTensors(RowSource, Protocol):
    """A whole model: its tensors and its config.json."""

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        ...


def empty_model(config: dict[str, Any]) -> Any:
    """The model of a config.json; its parameters are on the meta device, without memory."""
    fields = {**_rope_fields(config), "use_cache": False}
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))  # type: ignore[no-untyped-call]
    return model.eval()


@contextmanager
def loaded_layer(layer: nn.Module, index: int, source: RowSource, dtype: torch.dtype) -> Iterator[None]:
    """Give a decoder layer its tensors, and take them away at the end.

    Raises:
        CheckpointError: the checkpoint lacks a tensor, or has one that the layer has not.
    """
    prefix = f"model.layers.{index}."
    names = [name for name in source.specs() if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): _tensor(source.load(name), dtype) for name in names}
    wanted = {name: tuple(parameter.shape) for name, parameter in layer.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        raise CheckpointError(
            f"{prefix}{wrong[0]} is {found.get(wrong[0], 'missing')} in the checkpoint, "
            f"config.json means {wanted.get(wrong[0], 'none')}; give a checkpoint whose config.json fits its tensors"
        )
    layer.load_state_dict(tensors, assign=True)
    try:
        yield
    finally:
        layer.to("meta")


class UsedEmbeddings(nn.Module):
    """The rows of an embedding that some texts use."""

    def __init__(self, source: RowSource, tokens: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        used = np.unique(np.array(tokens, dtype=np.int64))
        rows = source.specs()[_EMBEDDING].shape[0]
        if used[-1] >= rows:
            raise CheckpointError(
                f"the texts have the token {used[-1]}, the embedding only {rows}; is the tokenizer its?"
            )
        self._used = torch.from_numpy(used)
        self.weight = nn.Parameter(_tensor(source.load_rows(_EMBEDDING, used.tolist()), dtype), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Look tokens up. [texts, tokens] → [texts, tokens, hidden size]"""
        return self.weight[torch.searchsorted(self._used.to(ids.device), ids)]


def _tensor(array: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.array(array)).to(dtype)


def _rope_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The config; for transformers 4, with `rope_theta` and `rope_scaling` in place of 5's `rope_parameters`."""
    parameters = dict(config.get("rope_parameters") or {})
    if not parameters or int(transformers.__version__.split(".")[0]) >= 5:
        return config
    theta = parameters.pop("rope_theta", None) or config.get("rope_theta", 10000.0)
    scaling = None if parameters.get("rope_type", "default") == "default" else parameters
    return {**config, "rope_theta": theta, "rope_scaling": scaling}
