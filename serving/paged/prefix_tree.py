"""Which full KV blocks hold which tokens.

Owns: a tree with one node a cached block. A node is found from its parent (the root of the request's
adapter at the top) by a hash of its tokens, and the dictionary that does so compares the tokens
themselves: two prompts can share a block only if every token up to its end, and the adapter, are
equal. Knows nothing of reference counts or of free blocks.

    node = tree.extend(tree.root(adapter=None), (1, 2, 3, 4), block_id=7)
"""

from __future__ import annotations

from collections.abc import Iterator


class PrefixNode:
    """A cached block, reached through the blocks before it."""

    __slots__ = ("block_id", "children", "parent", "token_ids")

    def __init__(self, parent: PrefixNode | None, token_ids: tuple[int, ...], block_id: int | None) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block_id = block_id  # None for a root only
        self.children: dict[tuple[int, ...], PrefixNode] = {}

    def path(self) -> list[PrefixNode]:
        """Nodes from the first block down to this one, the root left out."""
        nodes: list[PrefixNode] = []
        node: PrefixNode | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class PrefixTree:
    """Cached blocks by their tokens."""

    def __init__(self) -> None:
        self._roots: dict[str | None, PrefixNode] = {}

    def root(self, adapter: str | None) -> PrefixNode:
        """The empty prefix of an adapter."""
        root = self._roots.get(adapter)
        if root is None:
            root = self._roots[adapter] = PrefixNode(None, (), None)
        return root

    def match(self, adapter: str | None, token_ids: list[int], block_size: int) -> Iterator[PrefixNode]:
        """Cached full blocks at the beginning of `token_ids`, in order."""
        node = self._roots.get(adapter)
        if node is None:
            return
        for end in range(block_size, len(token_ids) + 1, block_size):
            node = node.children.get(tuple(token_ids[end - block_size : end]))
            if node is None:
                return
            yield node

    def extend(self, parent: PrefixNode, token_ids: tuple[int, ...], block_id: int) -> PrefixNode:
        """The child of `parent` with these tokens: the one that is there, else a new one for `block_id`."""
        node = parent.children.get(token_ids)
        if node is None:
            node = parent.children[token_ids] = PrefixNode(parent, token_ids, block_id)
        return node

    def remove(self, node: PrefixNode) -> None:
        """Forget a leaf. Blocks are evicted children first, so that what is cached can be reached."""
        assert not node.children, "a cached block outlived by its children"
        assert node.parent is not None, "a root is not a block"
        del node.parent.children[node.token_ids]

    def __iter__(self) -> Iterator[PrefixNode]:
        """All nodes that hold a block."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node
