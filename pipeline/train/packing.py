"""Reads training examples, packs those that share a prefix, so that it is computed once, and orders the packs.

packs = Packs(examples, max_branches=8, max_tokens=4096)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from pipeline.evaluate.case_tokens import case_tokens

_SHARED = 0.5  # of a prompt: longer examples that share less are not worth packing
_SHORT = 64  # tokens: matmuls of shorter prompts are too small to be fast one by one
_WINDOW = 16  # steps whose packs are sorted by length


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """The token ids of an example; `answer` ends with the end token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def tokenize_cases(path: Path, base: Path, task: Path | None, limit: int | None) -> Sequence[TokenizedExample]:
    """The prompt of each case as the task makes it, and its answer with the end token, tokenized apart as when serving.

    Args:
        path: cases as scripts/evaluate takes them.
        base: folder of the checkpoint, with its tokenizer.
        task: a task file; None for the one in the base's folder.
        limit: only the first cases.

    Raises:
        CheckpointError, TaskError: see `case_tokens`.
    """
    return [
        TokenizedExample(tuple(tokens[:start]), tuple(tokens[start:]))
        for tokens, start in case_tokens(path, base, task, limit)
    ]


@dataclass(frozen=True, slots=True)
class Pack:
    """The tokens of a prefix and of all branches, concatenated.

    Args:
        input_ids: [T] prefix, branch 0, branch 1, …
        positions: [T]; each branch continues the positions of the prefix.
        branches: [T] -1 for the prefix, else the number of the branch.
        predict_index: [N] indices in [T] whose logits are scored.
        targets: [N] the tokens that they should predict.
        num_branches: examples in the pack.
    """

    input_ids: Tensor
    positions: Tensor
    branches: Tensor
    predict_index: Tensor
    targets: Tensor
    num_branches: int


def common_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """Number of leading tokens that all prompts share; at least one token of each is not counted."""
    limit = min(len(p) for p in prompts) - 1
    first = prompts[0]
    for i in range(limit):
        if any(p[i] != first[i] for p in prompts):
            return i
    return limit


def make_pack(members: Sequence[TokenizedExample]) -> Pack:
    """Make a pack of examples: their common prefix, and a branch for each."""
    prefix = common_prefix_length([m.prompt for m in members])
    input_ids = list(members[0].prompt[:prefix])
    positions, branches = list(range(prefix)), [-1] * prefix
    predict: list[int] = []
    targets: list[int] = []
    for number, member in enumerate(members):
        branch = (*member.prompt[prefix:], *member.answer)
        first_answer = len(input_ids) + len(member.prompt) - prefix
        input_ids.extend(branch)
        positions.extend(range(prefix, prefix + len(branch)))
        branches.extend([number] * len(branch))
        predict.extend(range(first_answer - 1, len(input_ids) - 1))
        targets.extend(member.answer)
    return Pack(
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        branches=torch.tensor(branches),
        predict_index=torch.tensor(predict),
        targets=torch.tensor(targets),
        num_branches=len(members),
    )


def group_by_prefix(examples: Sequence[TokenizedExample], max_branches: int, max_tokens: int) -> list[list[int]]:
    """Groups of up to `max_branches` indices of examples whose prompts begin with the same tokens.

    The pack of a group has at most `max_tokens`, unless a single example has more.
    No prompt is twice in a group: the copies of an example would give the same gradient, at the cost of each.
    """
    groups: list[list[int]] = []
    seen: Counter[tuple[int, ...]] = Counter()
    copies: list[int] = []  # how many earlier examples have the prompt
    for example in examples:
        copies.append(seen[example.prompt])
        seen[example.prompt] += 1
    for index in sorted(range(len(examples)), key=lambda i: (copies[i], examples[i].prompt)):
        first = groups[-1][0] if groups else index
        is_open = bool(groups) and len(groups[-1]) < max_branches and copies[first] == copies[index]
        if is_open and _fit(examples, groups[-1], index, max_tokens):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _fit(examples: Sequence[TokenizedExample], group: Sequence[int], index: int, max_tokens: int) -> bool:
    """Whether the next example, in the order of the prompts, shares enough with a group and leaves it small enough."""
    first, other = examples[group[0]], examples[index]
    shared, longest = common_prefix_length([first.prompt, other.prompt]), max(len(first.prompt), len(other.prompt))
    if shared < _SHARED * longest and (shared == 0 or longest > _SHORT):
        return False
    return shared + sum(len(examples[i]) - shared for i in (*group, index)) <= max_tokens


class Packs(Sequence[Pack]):
    """The packs of examples, each made when it is accessed.

    Args:
        max_branches: limit of examples in a pack.
        max_tokens: of a pack; longer examples are left out.
    """

    def __init__(self, examples: Sequence[TokenizedExample], max_branches: int, max_tokens: int) -> None:
        self._examples = [example for example in examples if len(example) <= max_tokens]
        self.num_examples, self.left_out = len(self._examples), len(examples) - len(self._examples)
        self._groups = group_by_prefix(self._examples, max_branches, max_tokens)

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | Sequence[Pack]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return make_pack([self._examples[i] for i in self._groups[index]])


@dataclass
class PackStream:
    """An endless order of packs; each epoch's order depends only on the lengths, the seed and the size of a step.

    The packs of a step have similar lengths, so that threads with one pack each finish at about the same time.

    Args:
        lengths: of the packs, in tokens.
        epoch: epochs taken so far.
        offset: packs taken of this epoch.
    """

    lengths: Sequence[int]
    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, count: int) -> list[int]:
        """The indices of the next packs, across the end of an epoch if necessary."""
        taken: list[int] = []
        while len(taken) < count:
            part = self._order(count)[self.offset : self.offset + count - len(taken)]
            taken += part
            self.offset += len(part)
            if self.offset == len(self.lengths):
                self.epoch, self.offset = self.epoch + 1, 0
        return taken

    def _order(self, count: int) -> list[int]:
        rng = random.Random(f"{self.seed}/{self.epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        result: list[int] = []
        for start in range(0, len(order), _WINDOW * count):
            window = sorted(order[start : start + _WINDOW * count], key=lambda index: self.lengths[index])
            steps = [window[first : first + count] for first in range(0, len(window), count)]
            rng.shuffle(steps)
            result += [index for step in steps for index in step]
        return result
