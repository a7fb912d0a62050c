"""Titles of articles, and their slugs for web addresses: lower case, words joined by hyphens."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_WORDS = words(
    """Rice Garden Winter Python Bread Mountain River Coffee Paper Music Light City Bicycle Summer Forest Kitchen
    Camera Ocean Bridge Letter Market Window Planet Castle Engine Silver Orange Family School Travel History"""
)
_FORMS = (
    "How to Paint a {a} in {n} Steps",
    "{n} Ways to Cook {a}",
    "The {a} and the {b}",
    "Why {a} Needs {b}!",
    "{a}, {b} & {c}",
    "A Short History of the {a}",
    "{a}: A Guide for Beginners",
    "Is {a} Better Than {b}?",
    "My First {a} {b}",
    "{a} {b} ({n})",
)


def slug(title: str) -> str:
    """The words and numbers of a title in lower case with hyphens between."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A title and its slug."""
    a, b, c = rng.sample(_WORDS, 3)
    title = rng.choice(_FORMS).format(a=a, b=b, c=c, n=rng.randint(3, 99))
    return title, {"slug": slug(title)}
