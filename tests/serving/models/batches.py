"""Ragged batches for tests: requests with scattered blocks in random order."""

from __future__ import annotations

import torch

from lab.gpu.kernel_operands import int32, ragged_batch


def run(model, tokens: list[list[int]], spans: list[tuple[int, int]], tables, kv_caches, block_size: int):
    """One forward pass over the spans; returns the logits of every row."""
    ids = [token for row, (start, stop) in zip(tokens, spans, strict=True) for token in row[start:stop]]
    positions = [at for start, stop in spans for at in range(start, stop)]
    batch = ragged_batch(spans, tables, block_size)
    return model.compute_logits(model.forward(int32(ids), int32(positions), kv_caches, batch))


def run_whole(model, tokens: list[int], chunks: list[int], block_size: int = 16):
    """One request in chunks, on a new cache filled with NaN; returns the logits of every row."""
    count = -(-len(tokens) // block_size)
    kv_caches = model.allocate_kv_caches(count + 2, block_size)
    for cache in kv_caches:
        cache.fill_(float("nan"))
    table = list(range(count, 0, -1))
    rows, start = [], 0
    for size in chunks:
        rows.append(run(model, [tokens], [(start, start + size)], [table], kv_caches, block_size))
        start += size
    return torch.cat(rows)
