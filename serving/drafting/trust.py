"""Estimate the probability that a guess is accepted, from the outcomes of earlier guesses from the same source."""

from __future__ import annotations

from collections import OrderedDict

MAX_ADAPTERS = 64  # whose past is kept
Source = tuple[str, int]  # name of the source of a guess, and the class of its confidence or match length
MODEL_STEPS = 20  # classes of confidence for guesses of the draft model and of trained heads
TABLE_STEPS = 10  # classes of confidence for guesses of the n-gram table

# Priors: acceptance rates measured on 100 answers that the model was not trained on.
_START_TRUST = {"forced": 0.99, "context": 0.2, "context_without_space": 0.1, "recent": 0.3}


class Trust:
    """Acceptance rates by source, counting only guesses whose predecessors were all accepted."""

    _PRIOR_WEIGHT = 16.0
    _MEMORY = 400.0  # older outcomes fade, so that trust adapts when the traffic changes

    def __init__(self) -> None:
        self._counts: dict[Source, tuple[float, float]] = {}  # accepted, all
        self._cache: dict[Source, float] = {}

    def probability(self, source: Source) -> float:
        """The estimated probability that a guess from this source is accepted."""
        probability = self._cache.get(source)
        if probability is None:
            accepted, total = self._counts.get(source, (0.0, 0.0))
            probability = (accepted + self._PRIOR_WEIGHT * _prior(source)) / (total + self._PRIOR_WEIGHT)
            self._cache[source] = probability
        return probability

    def add(self, source: Source, was_accepted: bool) -> None:
        """Count an outcome."""
        accepted, total = self._counts.get(source, (0.0, 0.0))
        fade = 1.0 if total < self._MEMORY else self._MEMORY / (total + 1.0)
        self._counts[source] = ((accepted + was_accepted) * fade, (total + 1.0) * fade)
        self._cache.pop(source, None)


class TrustByAdapter:
    """Trust separately for each adapter, as each writes other answers; the least recently used is dropped."""

    def __init__(self) -> None:
        self._trust: OrderedDict[str | None, Trust] = OrderedDict()

    def of(self, adapter: str | None) -> Trust:
        """The trust in guesses for an adapter; None is the base."""
        trust = self._trust.setdefault(adapter, Trust())
        self._trust.move_to_end(adapter)
        if len(self._trust) > MAX_ADAPTERS:
            self._trust.popitem(last=False)
        return trust


def _prior(source: Source) -> float:
    kind, strength = source
    if kind == "table":
        return (strength + 0.5) / TABLE_STEPS
    if kind in ("model", "heads"):
        return (strength + 0.5) / MODEL_STEPS
    return min(0.9, _START_TRUST[kind] + 0.12 * strength)
