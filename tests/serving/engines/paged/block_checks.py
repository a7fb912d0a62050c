"""Checks all invariants of the KV cache's blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from serving.engines.paged.block_manager import BlockManager, PrefixNode
from serving.engines.paged.request import Request


def check_integrity(manager: BlockManager, requests: Iterable[Request]) -> None:
    """Check the blocks, given all unfinished requests."""
    requests = list(requests)
    held = Counter(block_id for request in requests for block_id in request.block_ids)
    assert len(manager._free) == len(set(manager._free)), "a block is free twice"
    free = set(manager._free)
    roots = manager._tree._roots.values()
    cached = {node.block_id: node for root in roots for child in root.children.values() for node in _below(child)}
    assert all(len(node.token_ids) == manager.block_size for node in cached.values()), "a cached block is not full"
    for block_id in range(manager.num_blocks):
        count = manager._ref_count[block_id]
        assert count == held[block_id], f"block {block_id}: {count} references, {held[block_id]} holders"
        assert (block_id in free) == (count == 0 and block_id not in cached), f"block {block_id} is lost"
        assert (block_id in manager._idle) == (count == 0 and block_id in cached), f"block {block_id} idle?"
        assert manager._node[block_id] is cached.get(block_id), f"block {block_id}: stale node"
    for request in requests:
        _check_request(manager, request)


def _check_request(manager: BlockManager, request: Request) -> None:
    assert request.num_computed_tokens <= request.num_tokens, f"{request}: computed more than it has"
    allowed = manager.num_blocks_for(request.num_computed_tokens)
    assert len(request.block_ids) == allowed, f"{request}: needs {allowed} blocks"
    assert len(set(request.block_ids)) == len(request.block_ids), f"{request}: a block twice"
    if request.num_registered_blocks == 0:
        return
    path = _path(manager._last_node(request))
    registered = request.num_registered_blocks
    assert [node.block_id for node in path] == request.block_ids[:registered], f"{request}: other blocks"
    token_ids = [token_id for node in path for token_id in node.token_ids]
    assert token_ids == request.token_ids[: registered * manager.block_size], f"{request}: other tokens"


def _below(node: PrefixNode) -> list[PrefixNode]:
    """A node and all below it."""
    found = [node]
    for one in found:
        found += one.children.values()
    return found


def _path(node: PrefixNode) -> list[PrefixNode]:
    """The nodes from the first block to this one, without the root."""
    nodes: list[PrefixNode] = []
    while node.parent is not None:
        nodes.insert(0, node)
        node = node.parent
    return nodes
