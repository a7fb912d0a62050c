"""Split names into words, and inflect nouns.

split_words("http.statusCode")  ->  ("http", "status", "code")
"""

import re
from functools import lru_cache

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BREAK = re.compile(r"[^A-Za-z0-9]+")
_SAME_IN_PLURAL = frozenset({"kafka", "status", "os", "dns", "cls", "io", "cpu", "memory", "latency", "traffic"})
_IRREGULAR = {"status": "statuses", "index": "indexes", "person": "people", "query": "queries"}


@lru_cache(maxsize=65536)
def split_words(name: str) -> tuple[str, ...]:
    """The lower-case words of a name, split at dots, underscores, dashes and changes of case."""
    return tuple(word.lower() for part in _BREAK.split(name) for word in _CAMEL.split(part) if word)


def last_part(name: str) -> str:
    """The part after the last dot."""
    return name.rsplit(".", 1)[-1]


@lru_cache(maxsize=65536)
def plural(noun: str) -> str:
    """The noun with its last word in the plural."""
    head, _, last = noun.rpartition(" ")
    prefix = f"{head} " if head else ""
    if last in _IRREGULAR:
        return prefix + _IRREGULAR[last]
    if last == "by" or last.endswith("_by"):
        return noun
    if last in _SAME_IN_PLURAL or (last.endswith("s") and not last.endswith(("ss", "us", "is"))):
        return noun
    if last.endswith(("s", "x", "ch", "sh")):
        return prefix + last + "es"
    if last.endswith("y") and last[-2:-1] not in "aeiou":
        return prefix + last[:-1] + "ies"
    return prefix + last + "s"


_UNITS = frozenset({"ms", "us", "ns", "s", "min", "bytes", "mb", "kb", "pct", "usd", "kg", "kmh", "kbps"})
_THINGS_WITH_BYTES = frozenset({("request",), ("response",), ("read",), ("write",), ("shuffle",), ("flow",)})
_PREFIXES = frozenset({"is", "has", "was"})


def strip_units(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without a unit at the end and without `is`, `has` or `was` at the start."""
    if words[-2:-1] in _THINGS_WITH_BYTES and words[-1] == "bytes":
        return words  # "request bytes" are not "the request"
    if len(words) > 1 and words[-1] in _UNITS:
        words = words[:-1]
    if len(words) > 1 and words[0] in _PREFIXES:
        words = words[1:]
    return words
