"""Heads that were trained for an adapter, and guess tokens after the next one from the model's last hidden state.

They are Medusa-1's (Cai et al. 2024, arXiv:2401.10774): each is a residual block, x + SiLU(W x + b), before the model's
own head. The hidden state x has chosen a token; the first head guesses the token after that one, the second head the
token after the first head's, and so on. So they guess a few tokens in a pass, and all at once.

    heads = DraftHeads.load(path, model_head)
    text = heads.begin(prompt_token_ids)
    text.observe(hidden, len(prompt_token_ids) + 1)
    for token, confidence in text.guesses(len(prompt_token_ids) + 1, bitmask): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional

from serving.weights.draft_weights import as_weights_error

MAX_HEADS = 16
_PROMPT_CANDIDATES = 1_024  # last tokens of a prompt that may be guessed
_NUM_GUESSES = 4  # for each place

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class DraftHeads:
    """The heads of one adapter; any number of requests may share them."""

    weight: Tensor  # [heads, hidden, hidden] float32
    bias: Tensor  # [heads, hidden] float32
    answer_tokens: Tensor  # [any] int64: token ids that may be guessed for any prompt
    model_head: Tensor  # [vocab, hidden] of the model, any float, on the model's device

    @classmethod
    def load(cls, path: Path, model_head: Tensor) -> DraftHeads:
        """Read and check the heads.

        Args:
            path: safetensors with `weight` and `bias`, of any float type, and `answer_tokens`, int32.
            model_head: [vocab, hidden] of the model that they were trained for.

        Raises:
            WeightsError: the file is damaged, or of a model with another hidden size or vocabulary.
        """
        vocab_size, hidden = model_head.shape
        with as_weights_error(path):
            tensors = load(path.read_bytes())  # a mapped file could change under the heads
            weight, bias, tokens = (tensors.pop(name) for name in ("weight", "bias", "answer_tokens"))
            if tensors:
                raise ValueError(f"it has {', '.join(sorted(tensors))} besides weight, bias and answer_tokens")
            count = weight.shape[0] if weight.ndim else 0
            if not 0 < count <= MAX_HEADS:
                raise ValueError(f"{count} heads where 1 to {MAX_HEADS} are expected")
            _check(weight, count, hidden, hidden)
            _check(bias, count, hidden)
            if tokens.dtype is not torch.int32 or tokens.ndim != 1:
                raise ValueError(f"answer_tokens is {tokens.dtype} {list(tokens.shape)}, not int32 token ids")
            if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
                raise ValueError(f"answer_tokens has token ids outside 0 … {vocab_size - 1}")
            return cls(weight.float(), bias.float(), tokens.long(), model_head)

    @property
    def nbytes(self) -> int:
        """The memory that the heads take, in bytes."""
        return self.weight.nbytes + self.bias.nbytes + self.answer_tokens.nbytes

    def begin(self, prompt: Sequence[int]) -> HeadText:
        """Start a request."""
        return HeadText(self, prompt)


class HeadText:
    """See `drafter.Heads`. Confidences are probabilities among the candidates. Use it from one thread only.

    Args:
        heads: the heads of the request's adapter.
        prompt: token ids; they may be guessed too.
    """

    def __init__(self, heads: DraftHeads, prompt: Sequence[int]) -> None:
        self._heads = heads
        self._prompt = prompt
        self._candidates: Ints | None = None  # [C], ascending
        self._rows: Tensor | None = None  # [C, hidden] float32 on the CPU, of the model's head
        self._hidden: NDArray[np.float32] | None = None
        self._num_tokens = 0  # tokens of prompt and output; `_hidden` has chosen the last one
        self._logits: NDArray[np.float32] | None = None  # [heads, C]

    @property
    def vocab_size(self) -> int:
        """See `drafter.Heads`."""
        return int(self._heads.model_head.shape[0])

    def observe(self, hidden: NDArray[np.float32], num_tokens: int) -> None:
        """See `drafter.Heads`."""
        self._hidden, self._num_tokens, self._logits = hidden.astype(np.float32), num_tokens, None

    def guesses(self, num_tokens: int, bitmask: Ints | None) -> list[tuple[int, int]]:
        """See `drafter.Heads`."""
        place = num_tokens - self._num_tokens
        if self._hidden is None or not 0 <= place < self._heads.weight.shape[0]:
            return []
        candidates, logits = self._compute(self._hidden)
        row = logits[place]
        if bitmask is not None:
            allowed = (bitmask[candidates >> 5] >> (candidates & 31)) & 1 == 1
            candidates, row = candidates[allowed], row[allowed]
        if not row.size or not np.isfinite(row).all():
            return []
        weights = np.exp(row - row.max())
        best = np.argsort(-weights, kind="stable")[:_NUM_GUESSES]
        confidences = (255 * weights[best] / weights.sum()).astype(int)
        return list(zip(candidates[best].tolist(), confidences.tolist(), strict=True))

    @torch.inference_mode()
    def _compute(self, hidden: NDArray[np.float32]) -> tuple[Ints, NDArray[np.float32]]:
        heads = self._heads
        if self._candidates is None or self._rows is None:
            prompt = torch.tensor(self._prompt[-_PROMPT_CANDIDATES:], dtype=torch.int64)
            tokens = torch.unique(torch.cat((heads.answer_tokens, prompt[prompt < self.vocab_size])))
            # The heads compute on the CPU; on a GPU, this copy waits for it, once for a request.
            self._candidates, self._rows = tokens.int().numpy(), heads.model_head[tokens].cpu().float()
        if self._logits is None:
            x = torch.from_numpy(hidden)
            self._logits = ((x + functional.silu(heads.weight @ x + heads.bias)) @ self._rows.T).numpy()
        return self._candidates, self._logits


def _check(tensor: Tensor, *shape: int) -> None:
    if tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise ValueError(f"{tensor.dtype} {list(tensor.shape)} where floats {list(shape)} are expected")
    if not torch.isfinite(tensor).all():
        raise ValueError("a weight is NaN or infinite")
