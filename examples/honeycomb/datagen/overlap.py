"""Find questions of the training data that share n-grams of words with questions kept for judging."""

from collections.abc import Iterable

from examples.honeycomb.datagen.words import split_words


def overlap(train_questions: Iterable[str], held_out_questions: Iterable[str], n: int = 6) -> dict[str, set[str]]:
    """Held-out questions that share `n` words in a row with a training question, each with the shared n-grams.

    Words are lower-case and without punctuation. A held-out question of fewer than `n` words is found if all its words
    stand in a training question in this order without gaps.

    Raises:
        ValueError: n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}; it must be at least 1")
    wanted: dict[tuple[str, ...], set[str]] = {}
    for question in held_out_questions:
        words = split_words(question)
        for gram in _grams(words, min(n, len(words))):
            wanted.setdefault(gram, set()).add(question)
    sizes = sorted({len(gram) for gram in wanted})
    found: dict[str, set[str]] = {}
    for question in train_questions:
        words = split_words(question)
        for gram in (gram for size in sizes for gram in _grams(words, size)):
            for held_out in wanted.get(gram, ()):
                found.setdefault(held_out, set()).add(" ".join(gram))
    return found


def _grams(words: tuple[str, ...], size: int) -> Iterable[tuple[str, ...]]:
    return (words[start : start + size] for start in range(len(words) - size + 1) if size)
