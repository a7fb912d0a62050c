"""How far guesses of a kind are trusted: by how often they were right.

Owns: counts of right and wrong per kind, which fade, and where trust starts before there are any.
Knows nothing of tokens.

    chance = trust.of(("table", 9))
"""

from __future__ import annotations

Source = tuple[str, int]  # a kind of guess: where from, and how long or how frequent the match
MODEL_STEPS = 20  # kinds of guesses by the draft model, by their share
TABLE_STEPS = 10

# Acceptance seen on 100 answers that the model had not been trained on; only where trust starts.
_START_TRUST = {"forced": 0.99, "own": 0.2, "twin": 0.1, "recent": 0.3}


class Trust:
    """How often guesses of a kind were right, when all before them were; it starts from a prior."""

    _PRIOR_WEIGHT = 16.0
    _MEMORY = 400.0  # older outcomes fade, so that trust follows a change of traffic

    def __init__(self) -> None:
        self._counts: dict[Source, tuple[float, float]] = {}  # right, seen
        self._chances: dict[Source, float] = {}  # asked for a hundred times as often as they change

    def of(self, source: Source) -> float:
        """The chance that a guess of this kind is right."""
        chance = self._chances.get(source)
        if chance is None:
            right, seen = self._counts.get(source, (0.0, 0.0))
            chance = (right + self._PRIOR_WEIGHT * _prior(source)) / (seen + self._PRIOR_WEIGHT)
            self._chances[source] = chance
        return chance

    def add(self, source: Source, was_right: bool) -> None:
        """Learn an outcome."""
        right, seen = self._counts.get(source, (0.0, 0.0))
        fade = 1.0 if seen < self._MEMORY else self._MEMORY / (seen + 1.0)
        self._counts[source] = ((right + was_right) * fade, (seen + 1.0) * fade)
        self._chances.pop(source, None)


def _prior(source: Source) -> float:
    kind, strength = source
    if kind == "table":
        return (strength + 0.5) / TABLE_STEPS
    if kind == "model":
        return (strength + 0.5) / MODEL_STEPS
    return min(0.9, _START_TRUST[kind] + 0.12 * strength)
