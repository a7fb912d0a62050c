"""The draft model as a torch module for training: a small transformer over a prompt and its answer.

It computes the same as the kernels in `serving.kernels`: rotary attention, RMS norms and SiLU as in Llama (Touvron et
al. 2023). Input and output embeddings are one projection of the large model's frozen embedding.

    model = DraftNetwork(embedding, size=128, num_layers=2); model.loss(ids, targets).backward()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from pipeline.train.errors import TrainingError
from serving.weights.draft_weights import EPS, HEAD_DIM, MAX_TOKENS, ROPE_THETA, VECTOR_EPS

_HIDDEN_PER_SIZE = 3


class Layer(nn.Module):
    """Attention and a gated MLP, each with a residual connection. x: [B, T, size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        hidden = _HIDDEN_PER_SIZE * size
        self.input_norm = nn.Parameter(torch.ones(size))
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.output = nn.Linear(size, size, bias=False)
        self.post_attention_norm = nn.Parameter(torch.ones(size))
        self.gate_up = nn.Linear(size, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the layer; mask: [B, 1, T, T], −1e4 where a token (third dimension) does not see another (fourth)."""
        batch, length, size = x.shape
        normed = functional.rms_norm(x, (size,), self.input_norm, EPS)
        heads = self.qkv(normed).view(batch, length, 3, size // HEAD_DIM, HEAD_DIM).permute(2, 0, 3, 1, 4)
        query, key, value = _rotate(heads[0], cos, sin), _rotate(heads[1], cos, sin), heads[2]
        scores = (query * HEAD_DIM**-0.5) @ key.transpose(-1, -2)
        weights = (scores.float() + mask).softmax(-1).to(value.dtype)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(batch, length, size))
        gate, up = self.gate_up(functional.rms_norm(x, (size,), self.post_attention_norm, EPS)).chunk(2, -1)
        added: Tensor = self.down(functional.silu(gate) * up)
        return x + added


class DraftNetwork(nn.Module):
    """The draft model of one checkpoint.

    Args:
        embedding: [V, H] of the checkpoint; not trained.
        size: width, a multiple of 32.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, embedding: Tensor, *, size: int, num_layers: int) -> None:
        super().__init__()
        self._scale = embedding.float().pow(2).mean().sqrt()
        self.embedding = embedding.float() / self._scale
        self.project = nn.Linear(embedding.shape[1], size, bias=False)
        self.bias = nn.Linear(embedding.shape[1], 1, bias=False)
        self.layers = nn.ModuleList(Layer(size) for _ in range(num_layers))
        self.final_norm = nn.Parameter(torch.ones(size))
        self.head = nn.Linear(size, size, bias=False)
        steps = torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2)
        angles = torch.arange(MAX_TOKENS)[:, None] * ROPE_THETA**-steps
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def loss(self, ids: Tensor, targets: Tensor, seen: Tensor) -> tuple[Tensor, float]:
        """Cross-entropy, and the fraction of tokens that are predicted right. See `batch_tensors` for the arguments."""
        logits, right = self.scored(ids, targets, seen)
        hits = (logits.argmax(-1) == right).float().mean().item()
        return functional.cross_entropy(logits.float(), right), hits

    def scored(self, ids: Tensor, targets: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, C] of the N tokens that have a target, and the targets' columns [N].

        Candidates are the tokens of this batch instead of the vocabulary, because a drafter chooses among few, too.
        """
        scored = targets >= 0
        tokens, indices = torch.unique(torch.cat((ids.flatten(), targets[scored])), return_inverse=True)
        vectors, biases = self.token_vectors(tokens)
        x = self._hidden(vectors[indices[: ids.numel()].view(ids.shape)], seen)[scored]
        return x @ vectors.T + biases, indices[ids.numel() :]

    @torch.no_grad()
    def scale_logits(self, factor: float) -> None:
        """Multiply all logits by a factor: confidence changes, and the order of tokens does not."""
        self.head.weight.mul_(factor)
        self.bias.weight.mul_(factor)

    def logits(self, ids: Tensor, candidates: Tensor, seen: Tensor) -> Tensor:
        """[B, T, C]: logits of `candidates` [C] to follow each of `ids` [B, T]; for `seen`, see `batch_tensors`."""
        vectors, biases = self.token_vectors(candidates)
        return self._hidden(self.token_vectors(ids)[0], seen) @ vectors.T + biases

    def token_vectors(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors [..., size] and output biases [...] of tokens."""
        rows = self.embedding[tokens]
        projected = self.project(rows)
        vectors = functional.rms_norm(projected, projected.shape[-1:], eps=VECTOR_EPS)
        return vectors, self.bias(rows)[..., 0]

    def _hidden(self, vectors: Tensor, seen: Tensor) -> Tensor:
        x = vectors.float()  # sums stay float32 under autocast
        mask = (torch.arange(x.shape[1]) >= seen[..., None])[:, None] * -1e4
        for layer in self.layers:
            x = layer(x, mask, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        result: Tensor = self.head(functional.rms_norm(x, self.final_norm.shape, self.final_norm, EPS))
        return result

    def save(
        self,
        path: Path,
        *,
        markers: Sequence[Sequence[int]],
        answer_tokens: Sequence[int],
        trigrams: Sequence[tuple[int, int, int]],
    ) -> None:
        """Write a file for `serving.weights.draft_weights.DraftWeights.load`, atomically.

        Args:
            markers: token sequences after which a prompt is read.
            answer_tokens: may be drafted for any prompt.
            trigrams: in answers, the third token always follows the other two.
        """
        tensors = {name.removesuffix(".weight"): t.detach() for name, t in self.state_dict().items()}
        tensors["bias"] = tensors["bias"][0] / self._scale
        halves = {name: t.to(torch.float16).contiguous() for name, t in tensors.items()}
        tokens = {f"mark.{i}": marker for i, marker in enumerate(markers)} | {"answer_tokens": answer_tokens}
        ids = {name: torch.tensor(list(values), dtype=torch.int32) for name, values in tokens.items()}
        ids["always"] = torch.tensor(list(trigrams), dtype=torch.int32).reshape(-1, 3)
        partial = path.with_name(path.name + ".partial")
        save_file(halves | ids, partial)
        partial.chmod(0o644)  # safetensors makes it readable by its owner only
        partial.replace(path)

    def restore(self, path: Path) -> None:
        """Load a file of the same width. Layers that it lacks are unchanged; new layers start as the identity.

        Raises:
            TrainingError: it has another width, or more layers.
        """
        try:
            tensors = load_file(path)
            tensors["bias"] = tensors["bias"][None] * self._scale
            num_layers = sum(name.endswith(".qkv") for name in tensors)
            if num_layers > len(self.layers):
                raise KeyError(f"layers.{len(self.layers)}")
            state, lacking = self.state_dict(), range(num_layers, len(self.layers))
            for name in state:
                if not name.startswith(tuple(f"layers.{i}." for i in lacking)):
                    state[name] = tensors[name.removesuffix(".weight")].float()
            self.load_state_dict(state)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise TrainingError(f"{path} is not a draft model of this size: {error}") from error


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
