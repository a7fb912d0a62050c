"""Read the phrase templates in `phrases/*.txt`, and expand them.

A section `[name]` lists templates. `!` marks a template for testing only, `+` one for training only. `{slot}` is filled
by the caller or by the section of that name, and `(a|b)` is a random choice.

    Phrasebook(rng, Style.SEEN).say("agg_frame", agg="p95 latency", M="")
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

FOLDER = Path(__file__).parent / "phrases"
_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")
UNSEEN_PART_SHARE = 0.5


class Style(Enum):
    """Which templates to use: all of training, those that training and tests share, or those of tests only."""

    TRAINING = "training"
    SEEN = "seen"
    UNSEEN = "unseen"


class Section(NamedTuple):
    """The templates of one section: for training and tests, for tests only, and for training only."""

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    training: tuple[str, ...]


@lru_cache(maxsize=1)
def templates() -> dict[str, Section]:
    """All sections by name."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("[") and line.endswith("]"):
                section = found.setdefault(line[1:-1], {"": [], "!": [], "+": []})
            elif line and not line.startswith("#"):
                mark = line[0] if line[0] in "!+" else ""
                section[mark].append(line.removeprefix(mark))
    return {name: Section(tuple(s[""]), tuple(s["!"]), tuple(s["+"])) for name, s in found.items()}


@dataclass
class Phrasebook:
    """Chooses templates for one question, and records which ones it used."""

    rng: Random
    style: Style
    used: list[str] = field(default_factory=list)

    def say(self, section: str, **slots: str) -> str:
        """A random phrase of a section, with its slots filled."""
        seen, unseen, training = templates()[section]
        pool, start = (seen + training if self.style is Style.TRAINING else seen), 0
        use_unseen = section.endswith("_frame") or self.rng.random() < UNSEEN_PART_SHARE
        if self.style is Style.UNSEEN and unseen and use_unseen:
            pool, start = unseen, len(seen)
        index = self.rng.randrange(len(pool))
        mark = "!" if start else "+" if index >= len(seen) else ""
        self.used.append(f"{section}/{start + index}{mark}")
        return self._fill(self._choose(pool[index]), slots)

    def _choose(self, text: str) -> str:
        while match := _CHOICE.search(text):
            text = text[: match.start()] + self.rng.choice(match[1].split("|")) + text[match.end() :]
        return text

    def _fill(self, text: str, slots: dict[str, str]) -> str:
        def one(match: re.Match[str]) -> str:
            name = match[1]
            return slots[name] if name in slots else self.say(name, **slots)

        return _SLOT.sub(one, text)
