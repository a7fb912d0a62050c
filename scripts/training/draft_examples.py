"""What a draft model is trained on: prompts in parts and their answers, some with other words as columns.

Owns: reading the data as the drafter will see it, renaming, and batches of tensors. Knows nothing of the
model. One that always meets the same columns learns them by heart; with words that mean nothing in their
place it must learn to look them up, as it must for columns that it has never met (domain randomization:
Tobin et al. 2017).

    pairs = read_pairs(Path("build/data/train.jsonl"), tokenizer, "columns-first")
    ids, targets, seen = batch_tensors(pairs[:64])
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from honeycomb.profile import PromptTemplate
from honeycomb.prompt import DRAFT_MARKS, build_prompt
from scripts.training.errors import AdapterError
from scripts.training.packing import read_examples
from serving.draft_text import find_last, read_parts
from serving.draft_weights import MAX_TOKENS
from serving.draft_words import Words
from serving.text import Tokenizer

_FREQUENT = 0.01  # of the answers have a token that may be drafted for any prompt
_OFTEN, _CERTAIN = 0.01, 0.999  # times in an answer that two tokens stand there, and that the same follows
_STRUCTURE = 0.2  # of the answers that have a token of structure, or of a value, have it from no column
_EVERYWHERE = 0.9  # of the prompts have a token of the template
_WITHOUT_COLUMNS = 0.1  # of the prompts, as where they are too long to be read whole
_RENAMED = 0.5  # of the prompts
_SHARES = (0.3, 0.6, 1.0)  # of a prompt's words that are renamed

Pair = tuple[list[list[int]], list[int]]  # what is read of a prompt, in parts, and the answer


def read_pairs(path: Path, tokenizer: Tokenizer, template: PromptTemplate) -> list[Pair]:
    """What is read of each prompt, and its answer. Longer ones than a draft model takes are left out.

    Raises:
        AdapterError: a prompt does not have the marks behind which it is to be read, or all are too long.
    """
    marks = [tokenizer.encode(mark, add_bos=False) for mark in DRAFT_MARKS[template]]
    words = Words(tokenizer)
    pairs: list[Pair] = []
    for example in read_examples(path):
        prompt = tokenizer.encode(build_prompt(example.nlq, example.cols, template))
        if any(find_last(prompt, mark) is None for mark in marks):
            raise AdapterError(f"{path}: a prompt's tokens have not all of {DRAFT_MARKS[template]}")
        parts = read_parts(prompt, marks, words)
        answer = tokenizer.encode(example.query, add_bos=False)
        if parts is not None and sum(map(len, parts)) + len(answer) <= MAX_TOKENS:
            pairs.append((parts, answer))
    if not pairs:
        raise AdapterError(
            f"{path}: no example has at most {MAX_TOKENS} tokens behind {DRAFT_MARKS[template][-1]!r}"
        )
    return pairs


def frequent_tokens(pairs: Sequence[Pair]) -> list[int]:
    """Tokens that stand in one of a hundred answers, ascending."""
    counts = Counter(token for _, answer in pairs for token in set(answer))
    return sorted(token for token, count in counts.items() if count >= _FREQUENT * len(pairs))


def certain_trigrams(pairs: Sequence[Pair]) -> list[tuple[int, int, int]]:
    """What follows two tokens of answers, where that is as good as always the same; ascending.

    Not what mostly stands in the prompt too: with other columns it would differ.
    """
    followers: dict[tuple[int, int], Counter[int]] = {}
    copied: Counter[tuple[int, int, int]] = Counter()
    for parts, answer in pairs:
        read = {token for part in parts for token in part}
        for trigram in zip(answer, answer[1:], answer[2:], strict=False):
            followers.setdefault(trigram[:2], Counter())[trigram[2]] += 1
            copied[trigram] += trigram[2] in read
    found = []
    for (first, second), counts in followers.items():
        (third, count), total = counts.most_common(1)[0], counts.total()
        is_frequent, is_certain = total >= _OFTEN * len(pairs), count >= _CERTAIN * total
        if is_frequent and is_certain and copied[first, second, third] < count / 2:
            found.append((first, second, third))
    return sorted(found)


class Renamer:
    """Puts other words in the place of a prompt's columns, in its question and its answer too.

    Only where the columns are a part of their own, before the question; other prompts stay as they are.

    Args:
        pairs: of all examples, which tell what has a meaning besides being a part of a column's name.
        tokenizer: of the prompts.
        order: chooses.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer, order: random.Random) -> None:
        self._plain = [tokenizer.without_space(token) for token in range(tokenizer.vocab_size)]
        texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
        self._kept = {token for token, text in enumerate(texts) if not any(map(str.isalnum, text))}
        self._kept |= _words_with_a_meaning([pair for pair in pairs if len(pair[0]) > 1])
        words = (token for token, text in enumerate(texts) if text.isalpha() and text.islower())
        self._words = [token for token in words if token not in self._kept]
        self._order = order

    def __call__(self, pair: Pair) -> Pair:
        """The pair as it is, without its first part, or with other words."""
        parts, answer = pair
        if len(parts) == 1:
            return pair
        if self._order.random() < _WITHOUT_COLUMNS:
            return parts[1:], answer
        if self._order.random() >= _RENAMED:
            return pair
        # A word that the answer has with a space before it too would have two names.
        spaced = {self._plain[token] for token in answer if self._plain[token] != token}
        share = self._order.choice(_SHARES)
        found = [word for word in sorted(set(parts[0]) - self._kept - spaced) if self._plain[word] == word]
        words = [word for word in found if self._order.random() < share]
        taken = {token for part in parts for token in part} | set(answer)
        others = [word for word in self._words if word not in taken]
        names = dict(zip(words, self._order.sample(others, min(len(words), len(others))), strict=False))
        return [[names.get(t, t) for t in part] for part in parts], [names.get(t, t) for t in answer]


def _words_with_a_meaning(pairs: Sequence[Pair]) -> set[int]:
    """Tokens of the prompt's template, of an answer's structure, and of questions about something else.

    "by" and "count" stand in columns too, and a question that has them rarely means those columns.
    """
    prompts, written, unasked, asked, meant = (Counter[int]() for _ in range(5))
    for parts, answer in pairs:
        columns, question, tokens = set(parts[0]), set(parts[-1]), set(answer)
        prompts.update(columns | question)
        written.update(tokens)
        unasked.update(tokens - columns)
        asked.update(columns & question)
        meant.update(columns & question & tokens)
    kept = {token for token, count in written.items() if unasked[token] >= _STRUCTURE * count}
    kept |= {token for token, count in prompts.items() if count >= _EVERYWHERE * len(pairs)}
    return kept | {token for token, count in asked.items() if meant[token] < count / 2}


def batches(pairs: Sequence[Pair], size: int, order: random.Random) -> Iterator[list[Pair]]:
    """Pairs of about the same length together, in another order every time, without end."""
    lengths = [sum(map(len, parts)) + len(answer) for parts, answer in pairs]
    while True:
        places = sorted(range(len(pairs)), key=lambda place: lengths[place] + 20 * order.random())
        found = [places[start : start + size] for start in range(0, len(places), size)]
        order.shuffle(found)
        for chosen in found:
            yield [pairs[place] for place in chosen]


def batch_tensors(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, targets, seen), each [B, T], of pairs that are padded at the end; T is a multiple of 16.

    A target is what follows a token, −1 where that is no part of the answer; seen is how many of the first
    tokens it sees.
    """
    length = -(-max(sum(map(len, parts)) + len(answer) for parts, answer in pairs) // 16) * 16
    ids = torch.zeros(len(pairs), length, dtype=torch.long)
    targets = torch.full_like(ids, -1)
    seen = torch.arange(1, length + 1).repeat(len(pairs), 1)
    for row, (parts, answer) in enumerate(pairs):
        end = 0
        for part in parts:
            start, end = end, end + len(part)
            ids[row, start:end] = torch.tensor(part)
            seen[row, start:end] = end
        ids[row, end : end + len(answer)] = torch.tensor(answer)
        targets[row, end - 1 : end + len(answer) - 1] = torch.tensor(answer)
    return ids, targets, seen
