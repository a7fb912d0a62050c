"""The training data of a draft model: prompts in parts and their answers, some with other words.

With the same words again and again, a draft model would memorize them. With random words in their place it must learn
to copy from the prompt, as it must for words that it has never seen (domain randomization, Tobin et al. 2017).

    pairs = make_pairs([(prompt, answer)], [common_marker(prompts)], WordTokenizer(tokenizer), cut_answers=True)
    ids, targets, seen = batch_tensors(pairs[:64])
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pipeline.train.errors import NoDraftsError
from serving.drafting.draft_model import split_prompt
from serving.text import Tokenizer
from serving.weights.draft_weights import MAX_TOKENS

_FREQUENT = 0.01  # a token in this fraction of answers may be drafted for any prompt
# For trigrams: occurrences of the first two tokens per answer, and fraction of the third.
_OFTEN, _CERTAIN = 0.01, 0.999
_SEEN = 30  # and at least so many in all
_STRUCTURE = 0.2  # a token is structure or a value if this fraction of the answers with it do not copy it from a column
_EVERYWHERE = 0.9  # a token in this fraction of prompts belongs to the template
_WITHOUT_COLUMNS = 0.1  # fraction of prompts whose columns are dropped, as in prompts that are too long to read
_RENAMED = 0.5  # fraction of prompts with renamed words
_FRACTIONS = (0.3, 0.6, 1.0)  # of a prompt's words that are renamed
_RENAMED_WORDS = 0.7  # the same where a prompt has no columns
_OWN_WORDS = 0.02  # a word in this fraction of answers is the answer's own
_MARKER_LENGTH = 32  # tokens at most: so many rarely occur in a caller's text too

Pair = tuple[list[list[int]], list[int]]  # the parts of a prompt that are read, and the answer
WordTokens = Callable[[Sequence[int]], list[int]]  # see `WordTokenizer`


def make_pairs(
    examples: Iterable[tuple[Sequence[int], Sequence[int]]],
    markers: Sequence[Sequence[int]],
    word_tokens: WordTokens,
    *,
    cut_answers: bool,
) -> list[Pair]:
    """The parts of each prompt that are read, and its answer.

    Prompts without a marker, with too many tokens after it or with an empty answer are left out.

    Args:
        examples: token ids of prompts and answers.
        markers: see `split_prompt`.
        word_tokens: see `WordTokenizer`.
        cut_answers: whether the begin of an answer that is too long is learned; otherwise it is left out.
    """
    pairs: list[Pair] = []
    for prompt, answer in examples:
        parts = split_prompt(prompt, markers, word_tokens)
        room = 0 if parts is None else MAX_TOKENS - sum(map(len, parts))
        learned = list(answer[:room] if cut_answers else answer)
        if parts is not None and learned and len(learned) <= room:
            pairs.append((parts, learned))
    return pairs


def common_marker(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The last tokens of what all prompts begin with: a draft model reads what varies between prompts.

    Raises:
        NoDraftsError: prompts have no fixed text before what varies.
    """
    first, last = min(prompts, key=tuple), max(prompts, key=tuple)  # the others lie between them
    if tuple(first) == tuple(last):
        raise NoDraftsError("all prompts are the same, so nothing shows which part of them varies; give other inputs")
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    if not length:
        raise NoDraftsError(
            "the prompts begin with different tokens, so nothing says where a draft model should begin to read; "
            "put a fixed text before the input, by the task's template or chat template"
        )
    return list(first[max(0, length - _MARKER_LENGTH) : length])


def frequent_tokens(pairs: Sequence[Pair]) -> list[int]:
    """Tokens that occur in at least one of a hundred answers, ascending."""
    counts = Counter(token for _, answer in pairs for token in set(answer))
    return sorted(token for token, count in counts.items() if count >= _FREQUENT * len(pairs))


def certain_trigrams(pairs: Sequence[Pair]) -> list[tuple[int, int, int]]:
    """Trigrams of answers whose third token practically always follows the other two, ascending.

    Trigrams whose third token is mostly copied from the prompt are left out: it differs with other columns.
    """
    followers: dict[tuple[int, int], Counter[int]] = {}
    copied: Counter[tuple[int, int, int]] = Counter()
    for parts, answer in pairs:
        read = {token for part in parts for token in part}
        for trigram in zip(answer, answer[1:], answer[2:], strict=False):
            followers.setdefault(trigram[:2], Counter())[trigram[2]] += 1
            copied[trigram] += trigram[2] in read
    trigrams = []
    for (first, second), counts in followers.items():
        (third, count), total = counts.most_common(1)[0], counts.total()
        is_frequent, is_certain = total >= max(_OFTEN * len(pairs), _SEEN), count >= _CERTAIN * total
        if is_frequent and is_certain and copied[first, second, third] < count / 2:
            trigrams.append((first, second, third))
    return sorted(trigrams)


class Renamer:
    """Replaces words of a prompt's columns by other words, in the columns, the question and the answer.

    Only prompts whose columns are a part of their own, before the question, are changed.

    Args:
        pairs: all examples, which show the tokens that have a meaning besides being a part of a column's name.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer, order: random.Random) -> None:
        self._without_space = [tokenizer.without_space(token) for token in range(tokenizer.vocab_size)]
        texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
        self._kept = {token for token, text in enumerate(texts) if not any(map(str.isalnum, text))}
        self._kept |= _meaningful_tokens([pair for pair in pairs if len(pair[0]) > 1])
        words = (token for token, text in enumerate(texts) if text.isalpha() and text.islower())
        self._words = [token for token in words if token not in self._kept]
        self._order = order

    def __call__(self, pair: Pair) -> Pair:
        """The pair unchanged, without its columns, or with other words."""
        parts, answer = pair
        if len(parts) == 1:
            return pair
        if self._order.random() < _WITHOUT_COLUMNS:
            return parts[1:], answer
        if self._order.random() >= _RENAMED:
            return pair
        # A word that the answer also has with a leading space would need two new names.
        spaced = {self._without_space[token] for token in answer if self._without_space[token] != token}
        fraction = self._order.choice(_FRACTIONS)
        candidates = sorted(set(parts[0]) - self._kept - spaced)
        candidates = [word for word in candidates if self._without_space[word] == word]
        words = [word for word in candidates if self._order.random() < fraction]
        used = {token for part in parts for token in part} | set(answer)
        others = [word for word in self._words if word not in used]
        names = dict(zip(words, self._order.sample(others, min(len(words), len(others))), strict=False))
        return [[names.get(t, t) for t in part] for part in parts], [names.get(t, t) for t in answer]


def _meaningful_tokens(pairs: Sequence[Pair]) -> set[int]:
    """Tokens of the prompt's template, of an answer's structure, and of questions that do not refer to columns.

    "by" and "count" occur in columns too, but a question with these words rarely refers to those columns.
    """
    in_prompts, in_answers, not_copied, in_questions, referred = (Counter[int]() for _ in range(5))
    for parts, answer in pairs:
        columns, question, tokens = set(parts[0]), set(parts[-1]), set(answer)
        in_prompts.update(columns | question)
        in_answers.update(tokens)
        not_copied.update(tokens - columns)
        in_questions.update(columns & question)
        referred.update(columns & question & tokens)
    kept = {token for token, count in in_answers.items() if not_copied[token] >= _STRUCTURE * count}
    kept |= {token for token, count in in_prompts.items() if count >= _EVERYWHERE * len(pairs)}
    return kept | {token for token, count in in_questions.items() if referred[token] < count / 2}


class WordRenamer:
    """Replaces words of a prompt by other words, in prompt and answer alike, with and without a leading space.

    Words of the template and those that many answers have are kept.

    Args:
        size: only tokens below are used.
    """

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer, size: int, order: random.Random) -> None:
        self._plain = [tokenizer.without_space(token) for token in range(size)]
        in_prompts = Counter(word for parts, _ in pairs for word in self._words_of(*parts))
        in_answers = Counter(word for _, answer in pairs for word in self._words_of(answer))
        kept = {word for word, count in in_prompts.items() if count >= _EVERYWHERE * len(pairs)}
        kept |= {word for word, count in in_answers.items() if count >= _OWN_WORDS * len(pairs)}
        spaced = ((plain, token) for token, plain in enumerate(self._plain) if plain != token and plain not in kept)
        self._spaced = {plain: token for plain, token in spaced if tokenizer.decode([plain]).isalpha()}
        self._words = sorted(self._spaced)
        self._order = order

    def __call__(self, pair: Pair) -> Pair:
        """The pair unchanged, or with other words."""
        parts, answer = pair
        if self._order.random() >= _RENAMED:
            return pair
        words = sorted(self._words_of(*parts) & self._spaced.keys())
        words = [word for word in words if self._order.random() < _RENAMED_WORDS]
        used = self._words_of(*parts, answer)
        drawn = self._order.sample(self._words, min(len(used) + len(words), len(self._words)))
        names: dict[int, int] = {}
        for word, other in zip(words, (word for word in drawn if word not in used), strict=False):
            names |= {word: other, self._spaced[word]: self._spaced[other]}
        return [[names.get(t, t) for t in part] for part in parts], [names.get(t, t) for t in answer]

    def _words_of(self, *texts: Sequence[int]) -> set[int]:
        return {self._plain[token] for text in texts for token in text}


def batches(pairs: Sequence[Pair], size: int, order: random.Random) -> Iterator[list[Pair]]:
    """Endless batches of pairs with similar lengths, in a new random order each epoch."""
    lengths = [sum(map(len, parts)) + len(answer) for parts, answer in pairs]
    while True:
        indices = sorted(range(len(pairs)), key=lambda index: lengths[index] + 20 * order.random())
        epoch = [indices[start : start + size] for start in range(0, len(indices), size)]
        order.shuffle(epoch)
        for batch in epoch:
            yield [pairs[index] for index in batch]


def batch_tensors(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, targets, seen), each [B, T], of pairs padded at the end; T is a multiple of 16.

    A target is the next token, or −1 if that is not part of the answer. `seen` is the number of leading tokens that a
    token attends to.
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
