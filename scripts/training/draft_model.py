"""The draft model as it is trained: a transformer of a few small layers over a prompt and its answer.

Owns: the module, its loss and its file. Knows nothing of clocks or of the command line. What it computes
is what `serving.kernels.draft` computes, tensor by tensor: rotary attention, RMS norms and SiLU as in Llama
(Touvron et al. 2023), with the frozen embedding of the large model behind one projection, at both ends.

    model = DraftModel(embedding, size=128, num_layers=2); model.loss(ids, targets).backward()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from scripts.training.errors import AdapterError
from serving.draft_weights import EPS, HEAD_DIM, MAX_TOKENS, ROPE_THETA, VECTOR_EPS

_HIDDEN_PER_SIZE = 3


class Layer(nn.Module):
    """Attention and a gated MLP, each added to what comes in. x: [B, T, size]."""

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

    def forward(self, x: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """hidden: [B, 1, T, T], −1e4 where a token (third dimension) does not see another (fourth)."""
        batch, length, size = x.shape
        normed = functional.rms_norm(x, (size,), self.input_norm, EPS)
        heads = self.qkv(normed).view(batch, length, 3, size // HEAD_DIM, HEAD_DIM).permute(2, 0, 3, 1, 4)
        query, key, value = _rotate(heads[0], cos, sin), _rotate(heads[1], cos, sin), heads[2]
        scores = (query * HEAD_DIM**-0.5) @ key.transpose(-1, -2)
        weights = (scores.float() + hidden).softmax(-1).to(value.dtype)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(batch, length, size))
        gate, up = self.gate_up(functional.rms_norm(x, (size,), self.post_attention_norm, EPS)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class DraftModel(nn.Module):
    """See the module's text.

    Args:
        embedding: [V, H] of the model whose answers are drafted; not trained.
        size: width, a multiple of 32.
        num_layers: of them.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, embedding: Tensor, *, size: int, num_layers: int) -> None:
        super().__init__()
        self._scale = embedding.float().pow(2).mean().sqrt()
        self._embedding = embedding.float() / self._scale
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
        """Cross-entropy, and how often the likeliest token is right. See `batch_tensors` for the arguments.

        What competes are the tokens of this batch, not the vocabulary: a drafter chooses among few, too.
        """
        scored = targets >= 0
        tokens, places = torch.unique(torch.cat((ids.flatten(), targets[scored])), return_inverse=True)
        vectors, biases = self._vectors(tokens)
        x = self._hidden(vectors[places[: ids.numel()].view(ids.shape)], seen)[scored]
        logits = x @ vectors.T + biases
        right = places[ids.numel() :]
        hits = (logits.argmax(-1) == right).float().mean().item()
        return functional.cross_entropy(logits.float(), right), hits

    def logits(self, ids: Tensor, candidates: Tensor, seen: Tensor) -> Tensor:
        """[B, T, C]: what follows each of `ids` [B, T], among `candidates` [C]; for seen: `batch_tensors`."""
        vectors, biases = self._vectors(candidates)
        return self._hidden(self._vectors(ids)[0], seen) @ vectors.T + biases

    def _vectors(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[..., size] and [...]: a token's vector, and how likely it is anyway."""
        rows = self._embedding[tokens]
        projected = self.project(rows)
        vectors = functional.rms_norm(projected, projected.shape[-1:], eps=VECTOR_EPS)
        return vectors, self.bias(rows)[..., 0]

    def _hidden(self, vectors: Tensor, seen: Tensor) -> Tensor:
        x = vectors.float()  # sums stay float32 under autocast
        hidden = (torch.arange(x.shape[1]) >= seen[..., None])[:, None] * -1e4
        for layer in self.layers:
            x = layer(x, hidden, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        return self.head(functional.rms_norm(x, self.final_norm.shape, self.final_norm, EPS))

    def save(
        self,
        path: Path,
        *,
        marks: Sequence[Sequence[int]],
        answer_tokens: Sequence[int],
        always: Sequence[tuple[int, int, int]],
    ) -> None:
        """Write what `serving.draft_weights.DraftWeights.load` reads; a reader never sees half of it.

        Args:
            path: of the file.
            marks: tokens of a prompt behind which it is read.
            answer_tokens: that may be drafted for any prompt.
            always: the third of these always follows the other two in answers.
        """
        tensors = {name.removesuffix(".weight"): t.detach() for name, t in self.state_dict().items()}
        tensors["bias"] = tensors["bias"][0] / self._scale
        halves = {name: t.to(torch.float16).contiguous() for name, t in tensors.items()}
        whole = {f"mark.{i}": mark for i, mark in enumerate(marks)} | {"answer_tokens": answer_tokens}
        numbers = {name: torch.tensor(list(ids), dtype=torch.int32) for name, ids in whole.items()}
        numbers["always"] = torch.tensor(list(always), dtype=torch.int32).reshape(-1, 3)
        partial = path.with_name(path.name + ".partial")
        save_file(halves | numbers, partial)
        partial.chmod(0o644)  # safetensors leaves it to its owner alone
        partial.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from a file of the same width. Layers that it lacks stay as they are: new ones do nothing.

        Raises:
            AdapterError: it has another width, or more layers.
        """
        try:
            found = load_file(path)
            found["bias"] = found["bias"][None] * self._scale
            num_layers = sum(name.endswith(".qkv") for name in found)
            if num_layers > len(self.layers):
                raise KeyError(f"layers.{len(self.layers)}")
            state, lacking = self.state_dict(), range(num_layers, len(self.layers))
            for name in state:
                if not name.startswith(tuple(f"layers.{i}." for i in lacking)):
                    state[name] = found[name.removesuffix(".weight")].float()
            self.load_state_dict(state)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise AdapterError(f"{path} is no draft model of this size: {error}") from error


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
