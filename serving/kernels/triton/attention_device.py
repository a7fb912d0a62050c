"""Triton kernels of attention over the paged KV cache, with several query rows of a request in a tile.

The keys of a request are divided into splits of a fixed size, each summed on its own, whose results a second kernel
adds in their order (Flash-Decoding, Dao et al. 2023). Keys that a row must not see change none of its bits.
"""

import triton
import triton.language as tl

from serving.kernels.triton.dot_device import dot, narrow


@triton.jit
def find_request(query_start_ptr, num_seqs, tile, TILE_ROWS: tl.constexpr):
    """The request that a tile belongs to; request i has the tiles from query_start[i] // TILE_ROWS + i on."""
    low, high = 0, num_seqs
    while low + 1 < high:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // TILE_ROWS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def first_key(first_position, WINDOW: tl.constexpr):
    """The first key that a row at this position sees."""
    if WINDOW > 0:
        return tl.maximum(first_position - WINDOW + 1, 0)
    else:
        return first_position * 0


@triton.jit(do_not_specialize=["num_seqs", "first_tile", "num_splits", "room", "table_width"])
def attend_splits(
    qkv_ptr,  # [rows, (heads + 2 kv_heads) · DIM] float32
    cache_ptr,  # [blocks, 2, KV_HEADS, block_size, DIM]
    query_start_ptr,  # the fields of AttentionMetadata, int32
    context_lens_ptr,
    block_tables_ptr,
    parts_ptr,  # [room, heads, splits, DIM] float32; row i of the batch is at i % room
    stats_ptr,  # [room, heads, splits, 2] float32: largest score, sum of weights
    num_seqs,
    first_tile,
    num_splits,
    room,
    table_width,
    block_size,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    TILE_ROWS: tl.constexpr,
    PAIRS: tl.constexpr,  # of a row and a head of the group, a power of two
    BLOCK: tl.constexpr,  # a power of two, at least DIM
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    DTYPE: tl.constexpr,
):
    """Attention of a tile of rows over some splits of the keys; grid: (tiles, KV heads, programs that share splits)."""
    tile, kv_head = first_tile + tl.program_id(0), tl.program_id(1)
    request = find_request(query_start_ptr, num_seqs, tile, TILE_ROWS)
    start = tl.load(query_start_ptr + request)
    rows = tl.load(query_start_ptr + request + 1) - start
    first_row = (tile - start // TILE_ROWS - request) * TILE_ROWS
    if first_row >= rows:
        return
    context = tl.load(context_lens_ptr + request)
    past = context - rows
    last_position = past + tl.minimum(first_row + TILE_ROWS, rows) - 1
    pair = tl.arange(0, PAIRS)
    row = first_row + pair // GROUP
    position = past + row
    column = tl.arange(0, BLOCK)
    is_pair = (pair < TILE_ROWS * GROUP) & (row < rows)
    is_query = is_pair[:, None] & (column < DIM)[None, :]
    head = kv_head * GROUP + pair % GROUP
    width = (GROUP + 2) * KV_HEADS * DIM
    query_ptr = qkv_ptr + (start + row).to(tl.int64)[:, None] * width + head[:, None] * DIM + column[None, :]
    query = narrow(tl.load(query_ptr, mask=is_query, other=0.0), DTYPE)
    seen_from = first_key(past + first_row, WINDOW) // KEYS * KEYS
    for split in range(seen_from // SPLIT + tl.program_id(2), last_position // SPLIT + 1, tl.num_programs(2)):
        highest = tl.full((PAIRS,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((PAIRS,), dtype=tl.float32)
        acc = tl.zeros((PAIRS, BLOCK), dtype=tl.float32)
        stop = tl.minimum((split + 1) * SPLIT, last_position + 1)
        for first in range(tl.maximum(split * SPLIT, seen_from), stop, KEYS):
            key = first + tl.arange(0, KEYS)
            exists = key < context
            block = tl.load(block_tables_ptr + request * table_width + key // block_size, mask=exists, other=0)
            stored = block.to(tl.int64) * 2 * KV_HEADS + kv_head
            keys_ptr = cache_ptr + (stored * block_size + key % block_size) * DIM
            inside = exists[:, None] & (column < DIM)[None, :]
            keys = tl.load(keys_ptr[:, None] + column[None, :], mask=inside, other=0.0)
            values_ptr = keys_ptr + KV_HEADS * block_size * DIM
            values = tl.load(values_ptr[:, None] + column[None, :], mask=inside, other=0.0)
            scores = dot(query, tl.trans(keys), "ieee") * scale
            seen = key[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
            higher = tl.maximum(highest, tl.max(scores, axis=1))
            base = tl.where(higher == -float("inf"), 0.0, higher)  # no key so far: −inf − (−inf) would be NaN
            weights = tl.exp(scores - base[:, None])
            kept = tl.exp(highest - base)
            total = total * kept + tl.sum(weights, axis=1)
            acc = acc * kept[:, None] + dot(weights.to(DTYPE), values, "ieee")
            highest = higher
        part = (((start + row) % room).to(tl.int64) * KV_HEADS * GROUP + head) * num_splits + split
        tl.store(parts_ptr + part[:, None] * DIM + column[None, :], acc, mask=is_query)
        tl.store(stats_ptr + part * 2, highest, mask=is_pair)
        tl.store(stats_ptr + part * 2 + 1, total, mask=is_pair)


@triton.jit(do_not_specialize=["num_seqs", "first_tile", "num_splits", "room"])
def combine_splits(
    query_start_ptr,
    context_lens_ptr,
    parts_ptr,
    stats_ptr,
    out_ptr,  # [rows, heads · DIM]
    num_seqs,
    first_tile,
    num_splits,
    room,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Add up the splits of a tile in their order; grid: (tiles, KV heads)."""
    tile, kv_head = first_tile + tl.program_id(0), tl.program_id(1)
    request = find_request(query_start_ptr, num_seqs, tile, TILE_ROWS)
    start = tl.load(query_start_ptr + request)
    rows = tl.load(query_start_ptr + request + 1) - start
    first_row = (tile - start // TILE_ROWS - request) * TILE_ROWS
    if first_row >= rows:
        return
    past = tl.load(context_lens_ptr + request) - rows
    last_position = past + tl.minimum(first_row + TILE_ROWS, rows) - 1
    pair, column = tl.arange(0, PAIRS), tl.arange(0, BLOCK)
    row = first_row + pair // GROUP
    head = kv_head * GROUP + pair % GROUP
    is_pair = (pair < TILE_ROWS * GROUP) & (row < rows)
    inside = is_pair[:, None] & (column < DIM)[None, :]
    highest = tl.full((PAIRS,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((PAIRS,), dtype=tl.float32)
    acc = tl.zeros((PAIRS, BLOCK), dtype=tl.float32)
    parts = (((start + row) % room).to(tl.int64) * KV_HEADS * GROUP + head) * num_splits
    for split in range(first_key(past + first_row, WINDOW) // SPLIT, last_position // SPLIT + 1):
        part = parts + split
        found = tl.load(stats_ptr + part * 2, mask=is_pair, other=-float("inf"))
        higher = tl.maximum(highest, found)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        kept, added = tl.exp(highest - base), tl.exp(found - base)
        total = total * kept + tl.load(stats_ptr + part * 2 + 1, mask=is_pair, other=0.0) * added
        values = tl.load(parts_ptr + part[:, None] * DIM + column[None, :], mask=inside, other=0.0)
        acc = acc * kept[:, None] + values * added[:, None]
        highest = higher
    total = tl.where(total > 0.0, total, 1.0)  # of pairs that are no row
    address = out_ptr + ((start + row).to(tl.int64) * GROUP * KV_HEADS + head)[:, None] * DIM + column[None, :]
    tl.store(address, narrow(acc / total[:, None], out_ptr.dtype.element_ty), mask=inside)
