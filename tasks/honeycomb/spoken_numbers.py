"""Numbers as people write them before a unit: 1.5, 2 1/2, three quarters, twenty-five, one and a half."""

from __future__ import annotations

import re
from typing import Final

_BELOW_20: Final = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS: Final = {
    **{"a": 1, "an": 1, "fourty": 40},
    **{word: number for number, word in enumerate(_BELOW_20.split(), 1)},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), 2)},
}
_PARTS: Final = {  # they multiply the word before
    **dict.fromkeys(("half", "halves"), 0.5),
    **dict.fromkeys(("third", "thirds"), 1 / 3),
    **dict.fromkeys(("quarter", "quarters"), 0.25),
    **dict.fromkeys(("tenth", "tenths"), 0.1),
    **{"couple": 2, "dozen": 12},
}
_POWERS: Final = {"hundred": 100, "thousand": 1000}  # they multiply all before
_SIGNS: Final = {"½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
_WORD: Final = "|".join(sorted({*_WORDS, *_PARTS, *_POWERS}, key=len, reverse=True))
_DIGITS: Final = rf"(?:\d{{1,9}} ?)?(?:\d{{1,9}}/[1-9]\d{{,8}}|[{''.join(_SIGNS)}])|\d{{1,18}}(?:[.,]\d{{1,18}})?"

NUMBER: Final = (
    rf"(?:\d{{1,9}} and an? (?:half|quarter)\b|{_DIGITS}|(?:{_WORD})(?:(?:[ -](?:of|and))?[ -](?:{_WORD})){{,5}}\b)"
)
"""A pattern of such numbers, without groups, for patterns that ignore case."""


def spoken_number(text: str) -> float:
    """The number that a text matched by NUMBER stands for."""
    for sign, fraction in _SIGNS.items():
        text = text.replace(sign, fraction)
    if "/" in text:
        *whole, above, below = (float(part) for part in re.findall(r"\d+", text))
        return sum(whole) + above / below
    digits, _, more = text.lower().partition(" and ")
    if digits[0].isdigit():
        return float(digits.replace(",", ".")) + (_of_words(more) if more else 0.0)
    return _of_words(text.lower())


def _of_words(text: str) -> float:
    total, last, adds = 0.0, 0.0, False
    for word in re.split(
        r"[ -]+", re.sub(r"^an? (?!half|quarter|third|tenth|couple|dozen|hundred|thousand|$)", "", text)
    ):
        if word in _POWERS:
            total, last = 0.0, (total + last or 1.0) * _POWERS[word]
        elif word in _PARTS and last and not adds:
            last *= _PARTS[word]
        elif word in _PARTS or (word in _WORDS and not (last and word in ("a", "an"))):
            total, last, adds = total + last, _PARTS.get(word) or _WORDS[word], False
        adds = adds or word == "and"
    return total + last
