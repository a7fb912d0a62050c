"""Owns reading `phrases/*.txt` and expanding templates. Knows no columns or queries.

A section `[name]` lists templates; `!` marks one kept for testing; `{slot}` is filled by the caller or
by the section of that name; `(a|b)` picks a spelling.
Use: `Phrasebook(rng, Style.SEEN).say("agg_frame", agg="p95 latency", M="")`.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parent / "phrases"
_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_SLOT = re.compile(r"\{(\w+)\}")
UNSEEN_PART_SHARE = 0.5


class Style(Enum):
    """Which templates may be used: those of training, or unseen ones."""

    SEEN = "seen"
    UNSEEN = "unseen"


@lru_cache(maxsize=1)
def templates() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Section → (templates of training, templates kept for testing)."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("[") and line.endswith("]"):
                seen, unseen = found.setdefault(line[1:-1], ([], []))
            elif line and not line.startswith("#"):
                (unseen if line.startswith("!") else seen).append(line.removeprefix("!"))
    return {name: (tuple(seen), tuple(unseen)) for name, (seen, unseen) in found.items()}


@dataclass
class Phrasebook:
    """Chooses templates and notes which; one per question."""

    rng: Random
    style: Style
    used: list[str] = field(default_factory=list)

    def say(self, section: str, **slots: str) -> str:
        """A phrase of the section, its slots filled."""
        seen, unseen = templates()[section]
        pool, start = seen, 0
        wants_unseen = section.endswith("_frame") or self.rng.random() < UNSEEN_PART_SHARE
        if self.style is Style.UNSEEN and unseen and wants_unseen:
            pool, start = unseen, len(seen)
        index = self.rng.randrange(len(pool))
        self.used.append(f"{section}/{start + index}{'!' if start else ''}")
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
