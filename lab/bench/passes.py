"""Measures the time of a forward pass by its number of tokens, and the lower bound by memory bandwidth.

Passes of our model have a context of 400 tokens, and a line a + b·M is fitted to their times. As with a grammar, each
row has the logits of a few allowed tokens; `head_ms` is the additional time of a row over the whole vocabulary. This is
the only module outside `serving` that uses the model and its kernels directly, without a scheduler.

    python -m lab.bench.passes FOLDER [REPEATS [ACTIVATIONS]]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from pipeline.paths import ROOT
from serving.kernels.base import Activations, AttentionMetadata
from serving.models.loader import load_model

CONTEXT = 400
PREFILL = 600
TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
ALLOWED = 16  # tokens that a row may choose from: three rows of four have fewer (Head)
BLOCK_SIZE = 16
BANDWIDTH_BYTES = 512 * 2**20  # much larger than any cache


def measure_in_process(weights: Path) -> dict[str, Any]:
    """Run `measure` in its own process, whose end frees the model's memory.

    Raises:
        OSError: it failed; the message is the end of its output.
    """
    command = [sys.executable, "-m", "lab.bench.passes", str(weights)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise OSError("\n".join(done.stderr.splitlines()[-8:]))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(weights: Path, repeats: int, activations: Activations = Activations.BFLOAT16) -> dict[str, Any]:
    """Measure all sizes in several rounds, so that a slow phase of the machine affects all of them.

    Inputs of 4-bit matmuls are rounded to `activations`, by default as the engine does with DTYPE=auto.
    """
    model = ModelPasses(weights, activations)
    model.run(PREFILL, PREFILL)  # writes to the cache's memory pages
    samples: dict[int, list[float]] = {tokens: [] for tokens in TOKENS}
    prefills: list[float] = []
    heads: list[float] = []
    for i in range(repeats):
        for tokens in TOKENS:
            samples[tokens].append(_seconds(partial(model.run, tokens, CONTEXT)))
        heads.append(_seconds(model.run_head))
        if i < max(3, repeats // 3):
            prefills.append(_seconds(partial(model.run, PREFILL, PREFILL)))
    costs = {tokens: 1000 * median(found) for tokens, found in samples.items()}
    fixed, each = fit_line(costs)
    return {
        "kernels": model.kernels_name,
        "context": CONTEXT,
        "ms_by_tokens": {str(tokens): round(ms, 3) for tokens, ms in costs.items()},
        "fit": {"a_ms": round(fixed, 3), "b_ms": round(each, 4)},
        "head_ms": round(1000 * median(heads), 3),
        "prefill_600_ms": round(1000 * median(prefills), 1),
        **floor(weights),
    }


def floor(weights: Path) -> dict[str, float]:
    """The lower bound of a pass: the time to read all layers' weights once from memory."""
    bandwidth = memory_bandwidth()
    size = bytes_per_pass(weights)
    return {
        "bytes_per_pass": size,
        "read_gb_per_s": round(bandwidth / 1e9, 1),
        "floor_ms": round(1000 * size / bandwidth, 3),
    }


def fit_line(costs: dict[int, float]) -> tuple[float, float]:
    """a and b of a + b·M by least squares of the relative error, so that small passes count as much as large ones."""
    tokens, ms = np.array(list(costs), float), np.array(list(costs.values()))
    columns = np.stack([1 / ms, tokens / ms], axis=1)
    (fixed, each), *_ = np.linalg.lstsq(columns, np.ones_like(ms), rcond=None)
    return float(fixed), float(each)


def bytes_per_pass(weights: Path) -> int:
    """Size of all tensors except embedding and head, of which a pass reads only some rows."""
    with safe_open(weights / "model.safetensors", framework="pt") as tensors:
        read = [n for n in tensors.keys() if "embed_tokens" not in n and "lm_head" not in n]  # noqa: SIM118
        return sum(tensors.get_tensor(n).nbytes for n in read)


def memory_bandwidth() -> float:
    """Memory bandwidth of all cores in bytes a second: the best of several sums."""
    data = torch.ones(BANDWIDTH_BYTES // 4)
    return BANDWIDTH_BYTES / min(_seconds(data.sum) for _ in range(8))


class ModelPasses:
    """Runs forward passes of our model without an engine."""

    def __init__(self, weights: Path, activations: Activations) -> None:
        self._model = load_model(weights, activations=activations)
        self._num_blocks = -(-max(CONTEXT, PREFILL) // BLOCK_SIZE)
        self._kv_caches = self._model.allocate_kv_caches(self._num_blocks, BLOCK_SIZE)
        for cache in self._kv_caches:
            cache.zero_()
        words = -(-self._model.config.vocab_size // 32)
        self._allowed = torch.zeros(max(TOKENS), words, dtype=torch.int32)  # one bitmask for each row
        self._allowed[:, :: max(1, words // ALLOWED)][:, :ALLOWED] = 1

    @property
    def kernels_name(self) -> str:
        """The name of the kernels."""
        return str(self._model.kernels_name)

    def run(self, num_tokens: int, context: int) -> None:
        """Run the last tokens of one request, with the rest of the context cached, and logits as with a grammar."""
        positions = torch.arange(context - num_tokens, context, dtype=torch.int32)
        metadata = AttentionMetadata(
            query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
            context_lens=torch.tensor([context], dtype=torch.int32),
            block_tables=torch.arange(self._num_blocks, dtype=torch.int32)[None],
            slot_mapping=positions.clone(),  # blocks are in order, so the slot is the position
        )
        ids = 5 + positions % (self._model.config.vocab_size - 5)
        hidden = self._model.forward(ids, positions, self._kv_caches, metadata)
        if num_tokens < context:
            rows = torch.arange(num_tokens, dtype=torch.int32)
            self._model.compute_allowed_logits(hidden, rows, self._allowed[:num_tokens], ALLOWED)

    def run_head(self) -> None:
        """Compute the logits of one row over the whole vocabulary."""
        self._model.compute_logits(torch.ones(1, self._model.config.hidden_size))


def _seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *["15", Activations.BFLOAT16.value][len(sys.argv) - 2 :]]
    print(json.dumps(measure(Path(arguments[0]), int(arguments[1]), Activations(arguments[2]))))
