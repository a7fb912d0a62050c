"""Training text as packs: one shared prefix and the branches that follow it.

Owns: tokenizing examples, finding the tokens that all examples of a column set share, and the
index tensors that the model needs to compute the shared part once. Knows nothing of the model.

    packs = Packs(examples, encode, max_branches=8, max_tokens=1400)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from tokenizers import Tokenizer
from torch import Tensor

ToPrompt = Callable[[str, Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the columns it may use, and the canonical query that answers it."""

    nlq: str
    cols: tuple[str, ...]
    query: str


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """`answer` ends with the end token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """Tokens of a prefix, then of every branch, end to end.

    Args:
        input_ids: [T] prefix, branch 0, branch 1, …
        positions: [T] each branch goes on counting where the prefix ends.
        prefix_length: tokens that every branch sees.
        branch_index: [k, L] where token j of branch i stands in [T]; padded with 0.
        branch_mask: [L, prefix + L] True where a branch token may look.
        unpad_index: [T - prefix] where a branch token stands in the flattened [k * L].
        predict_index: [N] the places in [T] whose logits are scored.
        targets: [N] the tokens they should predict.
    """

    input_ids: Tensor
    positions: Tensor
    prefix_length: int
    branch_index: Tensor
    branch_mask: Tensor
    unpad_index: Tensor
    predict_index: Tensor
    targets: Tensor
    num_branches: int

    def to(self, device: torch.device) -> Pack:
        """The same pack with its tensors on `device`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in fields.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def read_examples(path: Path, limit: int | None = None) -> list[Example]:
    """The examples of a JSONL file of {"nlq", "cols", "query"}, in file order."""
    examples: list[Example] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if limit is not None and len(examples) >= limit:
                break
            record = json.loads(line)
            examples.append(Example(record["nlq"], tuple(record["cols"]), _query_text(record["query"])))
    return examples


def _query_text(query: Any) -> str:
    return query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)


def tokenize(
    examples: Sequence[Example], tokenizer: Tokenizer, to_prompt: ToPrompt, end_token_id: int
) -> list[TokenizedExample]:
    """Token ids as inference sees them: the prompt by itself, then the answer by itself."""
    prompts = tokenizer.encode_batch([to_prompt(e.nlq, e.cols) for e in examples], add_special_tokens=False)
    answers = tokenizer.encode_batch([e.query for e in examples], add_special_tokens=False)
    return [
        TokenizedExample(tuple(p.ids), (*a.ids, end_token_id)) for p, a in zip(prompts, answers, strict=True)
    ]


def group_by_columns(examples: Sequence[Example], max_branches: int) -> list[list[int]]:
    """Indices of examples with the same column list, at most `max_branches` together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(example.cols, []).append(index)
    return [
        members[start : start + max_branches]
        for members in groups.values()
        for start in range(0, len(members), max_branches)
    ]


def common_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all prompts share; at least one token of each is left out."""
    limit = min(len(p) for p in prompts) - 1
    first = prompts[0]
    for i in range(limit):
        if any(p[i] != first[i] for p in prompts):
            return i
    return limit


def make_pack(members: Sequence[TokenizedExample]) -> Pack:
    """Lay out a prefix and its branches."""
    prefix = common_prefix_length([m.prompt for m in members])
    branches = [(*m.prompt[prefix:], *m.answer) for m in members]
    longest = max(len(b) for b in branches)
    input_ids = list(members[0].prompt[:prefix])
    positions = list(range(prefix))
    branch_index = torch.zeros(len(branches), longest, dtype=torch.long)
    unpad: list[int] = []
    predict: list[int] = []
    targets: list[int] = []
    for row, (member, branch) in enumerate(zip(members, branches, strict=True)):
        start = len(input_ids)
        input_ids.extend(branch)
        positions.extend(range(prefix, prefix + len(branch)))
        branch_index[row, : len(branch)] = torch.arange(start, start + len(branch))
        unpad.extend(range(row * longest, row * longest + len(branch)))
        first_answer = start + len(member.prompt) - prefix
        predict.extend(range(first_answer - 1, start + len(branch) - 1))
        targets.extend(member.answer)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = torch.cat([torch.ones(longest, prefix, dtype=torch.bool), causal], dim=1)
    return Pack(
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        prefix_length=prefix,
        branch_index=branch_index,
        branch_mask=mask,
        unpad_index=torch.tensor(unpad),
        predict_index=torch.tensor(predict),
        targets=torch.tensor(targets),
        num_branches=len(branches),
    )


class Packs(Sequence[Pack]):
    """The packs of examples, each tokenized when it is asked for: a run may never see them all.

    Args:
        encode: prompt and answer of examples as token ids.
        max_tokens: longer examples are left out, unless a pack has no other.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        encode: Callable[[Sequence[Example]], list[TokenizedExample]],
        max_branches: int,
        max_tokens: int,
    ) -> None:
        self.num_examples = len(examples)
        self._examples, self._encode, self._max_tokens = examples, encode, max_tokens
        self._groups = group_by_columns(examples, max_branches)

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | Sequence[Pack]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        members = self._encode([self._examples[i] for i in self._groups[index]])
        shortest = min(members, key=_length)
        return make_pack([m for m in members if _length(m) <= self._max_tokens] or [shortest])


def _length(example: TokenizedExample) -> int:
    return len(example.prompt) + len(example.answer)
