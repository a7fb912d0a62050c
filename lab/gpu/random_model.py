"""Models of well-known shapes with random weights, which are made on the device, and single passes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import sqrt
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from lab.gpu.kernel_operands import ragged_batch
from serving.engines.paged.step_batch import Batch, PaddedInputs
from serving.kernels.base import Kernels
from serving.kernels.lora import LoraBatch
from serving.models.config import ModelConfig, parse_config
from serving.models.llama import LlamaForCausalLM
from serving.models.loader import build_model

BLOCK_SIZE: Final = 16
_SPREAD: Final = 6.5  # standard deviation of the difference of two random 4-bit numbers


def _config(architecture: str, group_size: int, **sizes: Any) -> ModelConfig:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}
    return parse_config({"architectures": [architecture], "quantization_config": quantization, **sizes})


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int) -> dict[str, int]:
    return {
        **{"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocab},
        **{"num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 8192},
    }


SMALL: Final = "SmolLM2-135M"
MIDDLE: Final = "Qwen2.5-0.5B"
LARGE: Final = "Mistral-7B"
TINY: Final = "tiny"
CONFIGS: Final = {
    SMALL: _config(
        "LlamaForCausalLM", 64, **_sizes(576, 1536, 30, 9, 3, 49152), rope_theta=1e5, tie_word_embeddings=True
    ),
    MIDDLE: _config(
        "Qwen2ForCausalLM", 128, **_sizes(896, 4864, 24, 14, 2, 151936), rope_theta=1e6, tie_word_embeddings=True
    ),
    LARGE: _config("MistralForCausalLM", 128, **_sizes(4096, 14336, 32, 32, 8, 32000), sliding_window=4096),
    # For the interpreter; with biases, as Qwen2 has them.
    TINY: _config("Qwen2ForCausalLM", 32, **_sizes(64, 96, 1, 4, 2, 96), rope_theta=1e4, tie_word_embeddings=True),
}


class RandomTensors:
    """See `NamedTensors`: a tensor depends on its name and shape; layers' outputs are as large as inputs."""

    def __init__(self, device: str, group_size: int) -> None:
        self._device = device
        self._group_size = group_size

    def __contains__(self, name: str) -> bool:
        return name.endswith(".qweight")

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: torch.dtype | tuple[torch.dtype, ...]) -> Tensor:
        """See `NamedTensors.tensor`."""
        device = self._device
        generator = torch.Generator(device).manual_seed(crc32(name.encode()))
        if dtypes is torch.int32:
            return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=generator, device=device)
        if name.endswith(".scales"):
            size = 1 / (_SPREAD * sqrt(shape[0] * self._group_size))
            return ((0.5 + torch.rand(shape, generator=generator, device=device)) * size).half()
        noise = torch.randn(shape, generator=generator, device=device)
        return (1 + noise / 10 if "norm" in name else noise / 10).half()


class PassModel:
    """A model with a KV cache of random keys and values."""

    def __init__(self, config: ModelConfig, kernels: Kernels, device: str, num_blocks: int) -> None:
        assert config.quantization is not None, "random tensors are 4-bit weights"
        self.device = device
        tensors = RandomTensors(device, config.quantization.group_size)
        self.model: LlamaForCausalLM = build_model(config, tensors, kernels, device=device)
        self.model.rotary.complete(config.max_position_embeddings)  # as the engine does, so that passes do not wait
        self.kv_caches = self.model.allocate_kv_caches(num_blocks, BLOCK_SIZE)
        self.fill_caches()

    def fill_caches(self) -> None:
        """Make all keys and values random, the same ones at each call."""
        generator = torch.Generator(self.device).manual_seed(3)
        for cache in self.kv_caches:
            cache.copy_(torch.randn(cache.shape, generator=generator, device=self.device))

    def forward(self, inputs: PaddedInputs, lora: LoraBatch | None = None) -> Tensor:
        """Hidden states [rows, hidden]."""
        return self.model.forward(inputs.input_ids, inputs.positions, self.kv_caches, inputs.metadata, lora)

    def inputs(self, spans: Sequence[tuple[int, int]]) -> PaddedInputs:
        """Inputs on the device; see `batch_of`."""
        return PaddedInputs.of(batch_of(spans, self.model.config.vocab_size), self.device)

    def bytes_read(self, contexts: Sequence[int]) -> int:
        """The least bytes of a pass without the head: all layers' weights, and each context's keys and values."""
        layers = self.model.weights.decoder.layers
        linears = (weight for each in layers for weight in (each.qkv, each.output, each.gate_up, each.down))
        cached = sum(cache[0].nbytes for cache in self.kv_caches) // BLOCK_SIZE
        return sum(map(tensor_bytes, linears)) + cached * sum(contexts)


def tensor_bytes(weight: Any) -> int:
    """Memory of a weight's tensors."""
    return sum(value.nbytes for each in fields(weight) if isinstance(value := getattr(weight, each.name), Tensor))


def copy_of(weight: Any) -> Any:
    """The same weight at other addresses."""
    values = {each.name: getattr(weight, each.name) for each in fields(weight)}
    return replace(weight, **{name: value.clone() for name, value in values.items() if isinstance(value, Tensor)})


def batch_of(spans: Sequence[tuple[int, int]], vocab_size: int) -> Batch:
    """One request for each span (first position, end); a request's tokens are its own, its blocks in random order."""
    generator = np.random.default_rng(7)
    sizes = [-(-stop // BLOCK_SIZE) for _, stop in spans]
    free = generator.permutation(sum(sizes)).tolist()
    with torch.device("cpu"):
        metadata = ragged_batch(spans, [[free.pop() for _ in range(size)] for size in sizes], BLOCK_SIZE)
    positions = np.concatenate([np.arange(*span, dtype=np.int32) for span in spans])
    requests = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    return Batch(
        input_ids=((positions * 31 + requests * 17 + 5) % vocab_size).astype(np.int32),
        positions=positions,
        query_start=metadata.query_start.numpy(),
        context_lens=metadata.context_lens.numpy(),
        block_tables=metadata.block_tables.numpy(),
        slot_mapping=metadata.slot_mapping.numpy(),
        logit_rows=np.zeros(0, np.int32),
    )


def blocks_of(spans: Sequence[tuple[int, int]]) -> int:
    """Blocks that a batch needs."""
    return sum(-(-stop // BLOCK_SIZE) for _, stop in spans)
