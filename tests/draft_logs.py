"""Logs from which a draft model can learn, and which have nothing to repeat."""

from __future__ import annotations

from collections.abc import Iterator

WORDS = ["york", "bath", "leeds", "derby", "truro", "wells", "ripon", "salford"]


def log_lines(count: int) -> Iterator[dict[str, str]]:
    """Each answer has the partners of two words of its prompt, the second first."""
    for number in range(count):
        first, second = number * 5 % len(WORDS), number * 3 // len(WORDS) % len(WORDS)
        answer = f"{WORDS[(second + 3) % len(WORDS)]} to {WORDS[(first + 3) % len(WORDS)]}"
        yield {"prompt": f"### Text:\n{WORDS[first]} {WORDS[second]}\n### Route:\n", "answer": answer}
