"""A tree of cached KV blocks by their tokens (a radix tree as in SGLang, Zheng et al. 2024, with one block per node).

Each adapter has its own root. A child is looked up by its tokens in a dictionary, which compares the tokens themselves
and not only their hash. So two requests share a block only if all tokens up to its end, and the adapter, are equal.

    node = tree.extend(tree.root(adapter=None), (1, 2, 3, 4), block_id=7)
"""

from __future__ import annotations

from collections.abc import Iterator


class PrefixNode:
    """A cached block; its parent is the block before it."""

    __slots__ = ("block_id", "children", "parent", "token_ids")

    def __init__(self, parent: PrefixNode | None, token_ids: tuple[int, ...], block_id: int | None) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block_id = block_id  # None only for a root
        self.children: dict[tuple[int, ...], PrefixNode] = {}

    def path(self) -> list[PrefixNode]:
        """The nodes from the first block to this one, without the root."""
        nodes: list[PrefixNode] = []
        node: PrefixNode | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


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

    def __iter__(self) -> Iterator[PrefixNode]:
        """All nodes except the roots."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node
