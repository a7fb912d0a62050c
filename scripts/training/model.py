"""A Llama for LoRA training on packs: as few matmuls as the gradients allow.

Owns: the forward pass over a pack (shared prefix, branches) and the loss on answer tokens. The
base is frozen, so no gradient of a base weight is ever computed; the head is applied to scored
places only. Knows nothing of data, optimizers or files other than the base checkpoint.

    model = LoraLlama.load(Path("weights/base"), rank=24, alpha=48)
    worker = model.replica()
    worker.loss(pack).backward()   # worker.grads: all gradients in one vector
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from scripts.checkpoint.awq_search_result import AwqSearchResult
from scripts.training.attention import Rotary, pack_attention
from scripts.training.flat import FlatBuffer
from scripts.training.lora_linear import LoraLinear
from scripts.training.packing import Pack
from scripts.training.rounding import layer_rounding

HEAD_CHUNK = 128  # rows of logits alive at once


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama, from its config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Shape:
        """Reads both the old and the new place of rope_theta."""
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or {}
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            rope_theta=float(config.get("rope_theta") or rope["rope_theta"]),
            norm_eps=config["rms_norm_eps"],
        )


class LoraLayer:
    """One block: attention, then the gated MLP, each with a norm before and a residual around."""

    def __init__(
        self, shape: Shape, weights: dict[str, Tensor], rank: int, scaling: float, dtype: torch.dtype
    ) -> None:
        self.shape = shape
        self.input_norm = weights["input_layernorm.weight"].to(dtype)
        self.post_norm = weights["post_attention_layernorm.weight"].to(dtype)

        def fused(block: str, *names: str) -> LoraLinear:
            matrices = {n: weights[f"{block}.{n}.weight"] for n in names}
            rows = {n: m.shape[0] for n, m in matrices.items()}
            return LoraLinear(torch.cat(list(matrices.values())), rows, rank, scaling, dtype)

        self.linears = {
            "qkv": fused("self_attn", "q_proj", "k_proj", "v_proj"),
            "o": fused("self_attn", "o_proj"),
            "gate_up": fused("mlp", "gate_proj", "up_proj"),
            "down": fused("mlp", "down_proj"),
        }

    def replica(self, grads: FlatBuffer) -> LoraLayer:
        """The same layer, weights shared, that adds its gradients to `grads`."""
        other = copy.copy(self)
        other.linears = {name: linear.replica(grads) for name, linear in self.linears.items()}
        return other

    def refresh(self) -> None:
        """Call after the parameters changed."""
        for linear in self.linears.values():
            linear.refresh()

    def qkv(self, hidden: Tensor, rotary: Rotary, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q [T, heads, d], k and v [T, kv_heads, d]."""
        s = self.shape
        x = self.linears["qkv"](self._norm(hidden, self.input_norm), anchor)
        q, k, v = torch.split(x.view(len(x), -1, s.head_dim), [s.heads, s.kv_heads, s.kv_heads], dim=1)
        return rotary(q), rotary(k), v

    def finish(self, hidden: Tensor, attended: Tensor, anchor: Tensor) -> Tensor:
        """What follows attention: output projection and MLP. attended: [T, heads * d]."""
        hidden = hidden + self.linears["o"](attended, anchor)
        x = self.linears["gate_up"](self._norm(hidden, self.post_norm), anchor)
        gate, up = x.chunk(2, dim=-1)
        return hidden + self.linears["down"](functional.silu(gate) * up, anchor)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.shape.norm_eps)


class LoraLlama:
    """The base, frozen, and its LoRA matrices."""

    def __init__(
        self, shape: Shape, weights: dict[str, Tensor], rank: int, alpha: float, dtype: torch.dtype
    ) -> None:
        self.shape = shape
        self.rank, self.alpha = rank, alpha
        self.embedding = weights["model.embed_tokens.weight"].to(dtype)
        self.head = weights["lm_head.weight"].to(dtype) if "lm_head.weight" in weights else self.embedding
        self.final_norm = weights["model.norm.weight"].to(dtype)
        self.anchor = torch.zeros(())
        self.grads = torch.empty(0)  # a replica has its own
        self.layers = []
        for i in range(shape.layers):
            prefix = f"model.layers.{i}."
            own = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
            self.layers.append(LoraLayer(shape, own, rank, alpha / rank, dtype))
        size = sum(linear.num_parameters for layer in self.layers for linear in layer.linears.values())
        # fp32 whatever the base's dtype: the optimizer's small steps would vanish in bf16
        self.parameters = torch.zeros(size, device=self.embedding.device)
        buffer = FlatBuffer(self.parameters)
        for layer in self.layers:
            for linear in layer.linears.values():
                linear.bind(buffer)

    @classmethod
    def load(
        cls,
        folder: Path,
        rank: int,
        alpha: float,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LoraLlama:
        """A Hugging Face Llama checkpoint of one safetensors file."""
        shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
        weights = load_file(folder / "model.safetensors")
        return cls(shape, {n: t.to(device, torch.float32) for n, t in weights.items()}, rank, alpha, dtype)

    def named_lora(self) -> Iterator[tuple[str, Tensor]]:
        """Every A and B under its PEFT name, without the `base_model.model.` in front."""
        for name, linear, part in self._named_parts():
            yield f"{name}.lora_A.weight", linear.lora_a[part]
            yield f"{name}.lora_B.weight", linear.lora_b[part]

    def named_grads(self) -> Iterator[tuple[str, Tensor]]:
        """The gradients of a replica, under the names of `named_lora`."""
        for name, linear, part in self._named_parts():
            yield f"{name}.lora_A.weight", linear.grad_a[part]
            yield f"{name}.lora_B.weight", linear.grad_b[part]

    def _named_parts(self) -> Iterator[tuple[str, LoraLinear, str]]:
        blocks = {"qkv": "self_attn", "o": "self_attn", "gate_up": "mlp", "down": "mlp"}
        for i, layer in enumerate(self.layers):
            for group, linear in layer.linears.items():
                for part in linear.parts:
                    yield f"model.layers.{i}.{blocks[group]}.{part}", linear, part

    def initialize(self, seed: int) -> None:
        """A as PEFT draws it (Kaiming uniform, a = √5), B zero: the model starts as the base."""
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in self.named_lora():
            if name.endswith("lora_A.weight"):
                bound = 1 / math.sqrt(tensor.shape[1])
                tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))
            else:
                tensor.zero_()
        self.refresh()

    def round_weights(self, search: AwqSearchResult) -> None:
        """From now on compute with the four-bit weights that this search result makes of the merged ones."""
        for name, linear, part in self._named_parts():
            linear.rounding[part] = layer_rounding(search, name).to(self.embedding.device)
        self.refresh()

    def replica(self) -> LoraLlama:
        """The same model, weights shared, with gradients of its own: one for each worker thread."""
        other = copy.copy(self)
        other.grads = torch.zeros_like(self.parameters)
        other.anchor = torch.zeros((), requires_grad=True)
        buffer = FlatBuffer(other.grads)
        other.layers = [layer.replica(buffer) for layer in self.layers]
        return other

    def refresh(self) -> None:
        """Call after the parameters changed."""
        for layer in self.layers:
            layer.refresh()

    def hidden(self, pack: Pack) -> Tensor:
        """[N, hidden] after the last norm, at the scored places."""
        rotary = Rotary(pack.positions, self.shape.head_dim, self.shape.rope_theta, self.embedding.dtype)
        x = functional.embedding(pack.input_ids, self.embedding)
        for layer in self.layers:
            attended = pack_attention(*layer.qkv(x, rotary, self.anchor), pack)
            if layer is self.layers[-1]:  # only scored places go on
                x, attended = x[pack.predict_index], attended[pack.predict_index]
            x = layer.finish(x, attended, self.anchor)
        return self._final(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """What the last layer's output predicts: [N, hidden] → [N, vocabulary]."""
        return functional.linear(self._final(hidden), self.head)

    def _final(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.final_norm, self.shape.norm_eps)

    def loss(self, pack: Pack) -> Tensor:
        """Cross entropy summed over the answer tokens of all branches."""
        total: Tensor = _HeadLoss.apply(self.hidden(pack), self.head, pack.targets)  # type: ignore[no-untyped-call]
        return total


class _HeadLoss(Function):
    """Head and cross entropy in one: logits live a chunk at a time, their gradient replaces them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=hidden.device)
        grads = []
        for x, target in zip(torch.split(hidden, HEAD_CHUNK), torch.split(targets, HEAD_CHUNK), strict=True):
            logits = functional.linear(x, head)
            rows = torch.arange(len(target), device=target.device)
            scores = logits.float()
            scores -= scores.amax(dim=-1, keepdim=True)
            total -= scores[rows, target].sum()
            sums = scores.exp_().sum(dim=-1, keepdim=True)
            total += sums.log().sum()
            if ctx.needs_input_grad[0]:
                logits.copy_(scores.div_(sums))
                logits[rows, target] -= 1
                grads.append(logits @ head)
        ctx.save_for_backward(*([torch.cat(grads)] if grads else []))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_hidden,) = ctx.saved_tensors
        return grad_hidden * grads[0], None, None
