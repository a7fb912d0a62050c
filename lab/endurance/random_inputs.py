"""Random inputs: valid ones with mistakes, hostile texts, and any JSON value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

LEAVES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1e308,
    10**400,
    "",
    "a",
    "\0",
    "é" * 300,
    "🐝",
    "\\ud800",
    [],
    {},
    [[]],
    "x" * 20_000,
)
_PIECES: Final = (
    *("'", '"', "\\", "\\u", "\\ud800", "[", "]", "{", "}", "[[" * 50, "{" * 200, ",", ":", "###", "\n", "\0", "\x7f"),
    *("\ud800", "\udfff", "\u2028", "\u202e", "\ufeff", "\ufffd", "é", "e\u0301", "👩\u200d👧", "𝕏", "ﷺ", "한국"),
    *("null", "NaN", "-1e999", "1" * 400, "true", "../", "%00", "{{", "{%", "a" * 300, " " * 50, "\t", "<|im_end|>"),
)
_SCRIPTS: Final = ((0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0x9FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF))
_MORE_SCRIPTS: Final = ((0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x0, 0x1F), (0x300, 0x36F))


def value(rng: random.Random, names: Sequence[str], depth: int = 0) -> Any:
    """A JSON value of hostile leaves, with these names of properties."""
    match rng.randrange(4 if depth < 4 else 1):
        case 1:
            return [value(rng, names, depth + 1) for _ in range(rng.randrange(3))]
        case 2 | 3:
            return {rng.choice(names): value(rng, names, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(LEAVES)


def text(rng: random.Random, size: int = 12) -> str:
    """A text of hostile pieces and of any characters; may have unpaired surrogates."""
    parts = (rng.choice(_PIECES) if rng.random() < 0.5 else unicode_text(rng, 8) for _ in range(rng.randrange(size)))
    return "".join(parts)


def unicode_text(rng: random.Random, size: int) -> str:
    """A valid Unicode text of up to so many characters of several scripts, with marks and emoji."""
    scripts = (*_SCRIPTS, *_SCRIPTS[:1] * 4, *_MORE_SCRIPTS)
    return "".join(chr(rng.randint(*rng.choice(scripts))) for _ in range(rng.randrange(size + 1)))


def mistaken(rng: random.Random, valid: str) -> str:
    """A text with one to three mistakes: parts left out, doubled, exchanged, or hostile pieces in between."""
    for _ in range(rng.randrange(1, 4)):
        begin, end = sorted(rng.randrange(len(valid) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                valid = valid[:begin] + valid[end:]
            case 1:
                valid = valid[:end] + valid[begin:]
            case 2:
                valid = valid[:begin]
            case _:
                valid = valid[:begin] + rng.choice(_PIECES) + valid[begin:]
    return valid
