"""Change a sentence as people type: case, punctuation, greetings and typing errors. Guarded text is not changed."""

import re
from collections.abc import Callable
from random import Random

from examples.honeycomb.datagen.lists import word_list

_GUARDED = re.compile("(\x02[^\x03]*\x03)")
_WORD = re.compile(r"[a-z]{5,}")
_GREETINGS = ("hey, ", "hi, ", "please ", "pls ", "hello! ", "ok ", "so, ", "hey honeycomb, ")
_THANKS = (" please", " pls", " thanks", "!", " thx", " :)", " asap", "...", " right now", " recently")
_BREVITY = {r"\bwith\b": "w/", r"\bwithout\b": "w/o", r"\band\b": "&", r"\brequests\b": "reqs"}
_BREVITY |= {r"\baverage\b": "avg", r"\bnumber of\b": "# of", r"\bplease\b": "pls", r"\bminutes\b": "mins"}


def as_typed(rng: Random, text: str) -> str:
    """The sentence as a person might have typed it."""
    text = re.sub(r"\s+", " ", text.replace(" ,", ",")).strip()
    if text.endswith("?") and rng.random() < 0.3:
        text = text[:-1]
    elif text[-1] not in "?!." and rng.random() < 0.05:
        text += "."
    if rng.random() < 0.04:
        text = rng.choice(_GREETINGS) + text
    if rng.random() < 0.012:
        text = f"{rng.choice(word_list('tags')) if rng.random() < 0.4 else _made_up_tag(rng)} {text}"
    if rng.random() < 0.03 and not text.endswith(("?", ".")):
        text += rng.choice(_THANKS)
    text = _outside(text, lambda part: _style(rng, part)) if rng.random() < 0.04 else text
    if rng.random() < 0.07:
        text = typing_errors(rng, text)
    text = _case(rng, text)
    return text.replace("\x02", "").replace("\x03", "")


def _made_up_tag(rng: Random) -> str:
    """A made-up name of a team or dataset before a question; it has no effect on the query."""
    return "".join(rng.choice(word_list("syllables")) for _ in range(rng.randint(2, 4))).upper() + rng.choice(
        ("", "", ":")
    )


def _outside(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if part.startswith("\x02") else change(part) for part in _GUARDED.split(text))


def _style(rng: Random, part: str) -> str:
    for pattern, short in _BREVITY.items():
        if rng.random() < 0.6:
            part = re.sub(pattern, short, part)
    return part


def _case(rng: Random, text: str) -> str:
    roll = rng.random()
    if roll < 0.3:
        return text[0].upper() + text[1:]
    if roll < 0.315:
        return _outside(text, str.upper)
    return _outside(text, str.lower) if roll < 0.33 else text


def typing_errors(rng: Random, text: str) -> str:
    """One or two words with a letter swapped, dropped or doubled."""
    for _ in range(rng.choice((1, 1, 2))):
        guarded = [match.span() for match in _GUARDED.finditer(text)]
        words = [
            match.span()
            for match in _WORD.finditer(text)
            if not any(start < match.end() and match.start() < end for start, end in guarded)
        ]
        if not words:
            return text
        start, end = rng.choice(words)
        at = rng.randrange(start + 1, end - 1)
        edits = (
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
        )
        text = rng.choice(edits)
    return text
