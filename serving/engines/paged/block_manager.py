"""Allocate the blocks of the KV cache to requests, and share full blocks between requests with equal prefixes.

A block is free, or held by `ref_count` requests, or idle: cached but held by no request. Idle blocks are evicted when
there are no free ones, the least recently used first.

Two invariants keep this simple. Requests release their last block first, and a request that holds a block also holds
all blocks before it; so the least recently used idle block never has cached children. And only computed and accepted
tokens are registered in the tree, so blocks of rejected drafts are never in it.

    manager = BlockManager(num_blocks=64, block_size=16, prefix_caching=True)
    if manager.allocate(request, num_tokens=40) is None: ...  # no room
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from serving.engines.paged.request import Request


class PrefixNode:
    """A cached block; its parent is the block before it."""

    __slots__ = ("block_id", "children", "parent", "token_ids")

    def __init__(self, parent: PrefixNode | None, token_ids: tuple[int, ...], block_id: int | None) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block_id = block_id  # None only for a root
        self.children: dict[tuple[int, ...], PrefixNode] = {}


class PrefixTree:
    """All cached blocks, by adapter and tokens."""

    def __init__(self) -> None:
        self._roots: dict[str | None, PrefixNode] = {}

    def root(self, adapter: str | None) -> PrefixNode:
        """The root of an adapter: the empty prefix."""
        root = self._roots.get(adapter)
        if root is None:
            root = self._roots[adapter] = PrefixNode(None, (), None)
        return root

    def match(self, adapter: str | None, token_ids: list[int], block_size: int) -> Iterator[PrefixNode]:
        """The cached blocks of the longest prefix of `token_ids`, in order."""
        node = self._roots.get(adapter)
        if node is None:
            return
        for end in range(block_size, len(token_ids) + 1, block_size):
            node = node.children.get(tuple(token_ids[end - block_size : end]))
            if node is None:
                return
            yield node

    def extend(self, parent: PrefixNode, token_ids: tuple[int, ...], block_id: int) -> PrefixNode:
        """The existing child of `parent` with these tokens, or a new one for `block_id`."""
        node = parent.children.get(token_ids)
        if node is None:
            node = parent.children[token_ids] = PrefixNode(parent, token_ids, block_id)
        return node

    def remove(self, node: PrefixNode) -> None:
        """Remove a leaf. Children are evicted before their parents, so that every cached block can be reached."""
        assert not node.children, "a cached block has children"
        assert node.parent is not None, "a root is not a block"
        del node.parent.children[node.token_ids]


class BlockManager:
    """Allocates KV blocks.

    Args:
        num_blocks: blocks in the cache.
        block_size: tokens in a block.
        prefix_caching: whether to reuse full blocks of equal prefixes, also after their requests have finished.
    """

    def __init__(self, *, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._ref_count = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; low blocks first: their memory is populated
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached but not held, least recently used first
        self._node: list[PrefixNode | None] = [None] * num_blocks
        self._tree = PrefixTree()

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that can be allocated now, including idle ones."""
        return len(self._free) + len(self._idle)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def max_num_tokens(self, request: Request) -> int:
        """Number of tokens that `request` could hold with all free blocks."""
        return (len(request.block_ids) + self.num_free_blocks) * self.block_size

    def attach_prefix(self, request: Request) -> int:
        """Give a request without blocks the cached blocks of its prefix; return their number of tokens.

        The last token is never among them: it must be computed for its logits.
        """
        assert not request.block_ids, f"{request} already holds blocks"
        if not self._prefix_caching:
            return 0
        reusable = request.token_ids[: request.num_tokens - 1]
        for node in self._tree.match(request.adapter, reusable, self.block_size):
            assert node.block_id is not None
            self._hold(node.block_id)
            request.block_ids.append(node.block_id)
        request.num_registered_blocks = len(request.block_ids)
        request.num_computed_tokens = len(request.block_ids) * self.block_size
        return request.num_computed_tokens

    def allocate(self, request: Request, num_tokens: int) -> list[int] | None:
        """Allocate blocks so that `request` holds its first `num_tokens` tokens; return the new blocks.

        None: there is no room, and nothing has changed.
        """
        needed = self.num_blocks_for(num_tokens) - len(request.block_ids)
        if needed <= 0:
            return []
        if needed > self.num_free_blocks:
            return None
        new_ids = [self._take() for _ in range(needed)]
        request.block_ids.extend(new_ids)
        return new_ids

    def truncate(self, request: Request, num_tokens: int) -> None:
        """Release the blocks after the first `num_tokens` tokens: those of rejected drafts."""
        keep = self.num_blocks_for(num_tokens)
        while len(request.block_ids) > keep:
            self._release(request.block_ids.pop())

    def register(self, request: Request) -> None:
        """Make the request's full computed blocks available to other requests.

        If an equal block is cached already, the request uses that one and releases its own.
        """
        num_full = request.num_computed_tokens // self.block_size
        if not self._prefix_caching or num_full <= request.num_registered_blocks:
            return
        node = self._last_node(request)
        for index in range(request.num_registered_blocks, num_full):
            start = index * self.block_size
            token_ids = tuple(request.token_ids[start : start + self.block_size])
            own = request.block_ids[index]
            node = self._tree.extend(node, token_ids, own)
            assert node.block_id is not None
            if node.block_id == own:
                self._node[own] = node
            else:
                self._hold(node.block_id)
                request.block_ids[index] = node.block_id
                self._release(own)
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Release all blocks of a request, the last one first."""
        for block_id in reversed(request.block_ids):
            self._release(block_id)
        request.block_ids = []
        request.num_registered_blocks = 0

    def _last_node(self, request: Request) -> PrefixNode:
        if request.num_registered_blocks == 0:
            return self._tree.root(request.adapter)
        node = self._node[request.block_ids[request.num_registered_blocks - 1]]
        assert node is not None, f"{request} holds a registered block that is not in the tree"
        return node

    def _take(self) -> int:
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._idle.popitem(last=False)
            node = self._node[block_id]
            assert node is not None
            self._tree.remove(node)
            self._node[block_id] = None
        self._ref_count[block_id] = 1
        return block_id

    def _hold(self, block_id: int) -> None:
        if self._ref_count[block_id] == 0:
            del self._idle[block_id]
        self._ref_count[block_id] += 1

    def _release(self, block_id: int) -> None:
        self._ref_count[block_id] -= 1
        if self._ref_count[block_id] > 0:
            return
        if self._node[block_id] is None:
            self._free.append(block_id)
        else:
            self._idle[block_id] = None
