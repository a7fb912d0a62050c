"""What a model pass costs, by the tokens in it, beside the least that it could cost.

Owns: timing passes of our own model at a context of 400 tokens, a fitted line a + b·M, prefill, the
memory bandwidth of the machine and the bytes that a pass must read. As under a grammar, each row has the
logits of a few allowed tokens; what a row over the whole vocabulary adds is `head_ms`. Knows nothing of
requests.

    python -m scripts.benchmark.passes weights/honeycomb-nlq
"""

from __future__ import annotations

import importlib
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

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 400
PREFILL = 600
TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
ALLOWED = 16  # tokens that a row may choose from: three rows of four have fewer (serving/paged/head.py)
BLOCK_SIZE = 16
BANDWIDTH_BYTES = 512 * 2**20  # well over any cache


def measure_in_process(weights: Path, *, repeats: int = 15) -> dict[str, Any]:
    """All of it, in a process of its own: the model goes away with it.

    Raises:
        OSError: it failed; with its last words.
    """
    command = [sys.executable, "-m", "scripts.benchmark.passes", str(weights), str(repeats)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise OSError("\n".join(done.stderr.splitlines()[-8:]))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(weights: Path, repeats: int) -> dict[str, Any]:
    """Rounds over all sizes, so that a slow moment of the machine falls on each of them."""
    model = ModelPasses(weights)
    model.run(PREFILL, PREFILL)  # touches the cache's memory
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
    """Reading every layer's weights once from memory: no pass of any size is faster."""
    bandwidth = memory_bandwidth()
    size = bytes_per_pass(weights)
    return {
        "bytes_per_pass": size,
        "read_gb_per_s": round(bandwidth / 1e9, 1),
        "floor_ms": round(1000 * size / bandwidth, 3),
    }


def fit_line(costs: dict[int, float]) -> tuple[float, float]:
    """a and b of a + b·M, least squares of the relative error: small passes count as much as large."""
    tokens, ms = np.array(list(costs), float), np.array(list(costs.values()))
    columns = np.stack([1 / ms, tokens / ms], axis=1)
    (fixed, each), *_ = np.linalg.lstsq(columns, np.ones_like(ms), rcond=None)
    return float(fixed), float(each)


def bytes_per_pass(weights: Path) -> int:
    """All tensors but embedding and head, of which a pass reads some rows."""
    with safe_open(weights / "model.safetensors", framework="pt") as tensors:
        read = [n for n in tensors.keys() if "embed_tokens" not in n and "lm_head" not in n]  # noqa: SIM118
        return sum(tensors.get_tensor(n).nbytes for n in read)


def memory_bandwidth() -> float:
    """Bytes a second that all cores read together; the best of some sums."""
    data = torch.ones(BANDWIDTH_BYTES // 4)
    return BANDWIDTH_BYTES / min(_seconds(data.sum) for _ in range(8))


class ModelPasses:
    """Our model without an engine. It is reached by name, as `create_engine` reaches engines: only a
    benchmark looks behind the front of `serving`."""

    def __init__(self, weights: Path) -> None:
        loader = importlib.import_module("serving.models.loader")
        base = importlib.import_module("serving.kernels.base")
        self._metadata = base.AttentionMetadata
        self._model = loader.load_model(weights, activations=base.Activations.BFLOAT16)  # as the engine does
        self._num_blocks = -(-max(CONTEXT, PREFILL) // BLOCK_SIZE)
        self._kv_caches = self._model.allocate_kv_caches(self._num_blocks, BLOCK_SIZE)
        for cache in self._kv_caches:
            cache.zero_()
        words = -(-self._model.config.vocab_size // 32)
        self._allowed = torch.zeros(max(TOKENS), words, dtype=torch.int32)  # a bitmask a row
        self._allowed[:, :: max(1, words // ALLOWED)][:, :ALLOWED] = 1

    @property
    def kernels_name(self) -> str:
        """Which kernels computed."""
        return str(self._model.kernels_name)

    def run(self, num_tokens: int, context: int) -> None:
        """One request's pass over its last tokens, the context's others cached; logits as after a grammar."""
        positions = torch.arange(context - num_tokens, context, dtype=torch.int32)
        metadata = self._metadata(
            query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
            context_lens=torch.tensor([context], dtype=torch.int32),
            block_tables=torch.arange(self._num_blocks, dtype=torch.int32)[None],
            slot_mapping=positions.clone(),  # blocks in order: the slot is the position
        )
        ids = 5 + positions % (self._model.config.vocab_size - 5)
        hidden = self._model.forward(ids, positions, self._kv_caches, metadata)
        if num_tokens < context:
            rows = torch.arange(num_tokens, dtype=torch.int32)
            self._model.compute_allowed_logits(hidden, rows, self._allowed[:num_tokens], ALLOWED)

    def run_head(self) -> None:
        """The logits of a row that may choose from the whole vocabulary."""
        self._model.compute_logits(torch.ones(1, self._model.config.hidden_size))


def _seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15)))
