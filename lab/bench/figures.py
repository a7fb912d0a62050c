"""The figures of a run: latencies, rates, ratios, where the time goes, equal answers, and changes beyond noise.

For changes, medians of two results are compared. Noise is the variation of the median when requests are resampled
(bootstrap, 99 %, because many figures are compared). A change is reported if this interval of the ratio excludes 1 and
the median has changed by more than 3 %, since every machine is at least that noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.bench.asker import Asker
from lab.bench.peers import OURS
from lab.bench.protocol import Reply
from lab.bench.workloads import LOADS, Batches, Workload

MODEL = ("prefill", "decode", "head")  # parts of a step that the model takes
OUTSIDE = "outside steps"  # waiting, compiling the grammar, detokenizing
RESAMPLES = 2000
SMALLEST = 1.03  # smaller changes are not reported
MIN_REQUESTS = 3  # on each side
SHOWN = 5  # examples of other answers
Floats = NDArray[np.float64]
_ASKED = (Workload.ONE_NEW, Workload.ONE_SEEN, Workload.LOAD_8, Workload.LOAD_32)


@dataclass(frozen=True, slots=True)
class Run:
    """The replies of one engine to one batch."""

    workload: str
    engine: str
    round: int
    variant: float | None  # arrival rate, or number of users
    concurrency: int
    wall: float
    cpu: float
    replies: tuple[Reply, ...]
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part
    last_arrival: float = 0.0  # in an open loop, seconds after the start of the batch


def of(runs: Iterable[Run], workload: str, engine: str) -> list[Run]:
    """The runs of one engine in one workload."""
    return [run for run in runs if run.workload == workload and run.engine == engine]


def good(runs: Iterable[Run]) -> list[Reply]:
    """All replies without errors."""
    return [reply for run in runs for reply in run.replies if reply.error is None]


def engine_figures(runs: Sequence[Run], engine: str) -> dict[str, Any]:
    """All figures of one engine that were measured."""
    figures: dict[str, Any] = {}
    for suffix, workload in (("", Workload.ONE_NEW), ("_seen", Workload.ONE_SEEN)):
        figures |= {f"{name}{suffix}": v for name, v in latencies(good(of(runs, workload, engine))).items()}
    for workload, users in LOADS.items():
        load = of(runs, workload, engine)
        if good(load):
            figures[f"answers_per_s_{users}"] = median(_rate(run, lambda r: 1) for run in load)
            figures[f"tokens_per_s_{users}"] = median(_rate(run, lambda r: r.output_tokens) for run in load)
            figures |= {f"{k}_{users}": v for k, v in _spread(good(load)).items()}
    if replies := good(of(runs, Workload.FREE_200, engine)):
        figures["free_tokens_per_s"] = median(r.output_tokens / r.e2e for r in replies)
        figures["free_e2e_ms_p50"] = 1000 * median(r.e2e for r in replies)
    figures["errors"] = sum(r.error is not None for run in runs if run.engine == engine for r in run.replies)
    return figures


def latencies(replies: Sequence[Reply]) -> dict[str, float]:
    """Latencies of requests asked one at a time."""
    if not replies:
        return {}
    tpots = [reply.tpot for reply in replies if reply.tpot is not None]
    figures = {
        "ttft_ms": 1000 * median(reply.ttft or reply.e2e for reply in replies),
        **_spread(replies),
        "tokens_per_s": median(reply.output_tokens / reply.e2e for reply in replies),
        "passes": fmean(reply.passes for reply in replies),
        "output_tokens": fmean(reply.output_tokens for reply in replies),
        "cached_share": sum(r.cached_tokens for r in replies) / max(1, sum(r.input_tokens for r in replies)),
    }
    return figures | ({"tpot_ms": 1000 * median(tpots)} if tpots else {})


def _spread(replies: Sequence[Reply]) -> dict[str, float]:
    seconds = [reply.e2e for reply in replies]
    return {"e2e_ms_p50": 1000 * median(seconds), "e2e_ms_p95": 1000 * float(np.percentile(seconds, 95))}


def _rate(run: Run, count: Callable[[Reply], float]) -> float:
    return sum(count(reply) for reply in run.replies if reply.error is None) / run.wall


def passes_per_answer(runs: Sequence[Run]) -> float | None:
    """Our mean passes of an answer over the evaluation set or, without one, over requests asked one at a time."""
    for workload in (Workload.EVALUATION, Workload.ONE_NEW):
        if replies := good(of(runs, workload, OURS)):
            return fmean(reply.passes for reply in replies)
    return None


def ratios(runs: Sequence[Run], engines: Iterable[str]) -> dict[str, dict[str, dict[str, float]]]:
    """How many times better our engine is than each peer, compared within rounds, which share their noise.

    For every figure: median, minimum and maximum over the rounds.
    """
    result: dict[str, dict[str, dict[str, float]]] = {}
    for engine in engines:
        figures = {name: _by_round(runs, engine, *how) for name, how in _COMPARED.items()}
        measured = {name: _middle(values) for name, values in figures.items() if values}
        if engine != OURS and measured:
            result[engine] = measured
    return result


def _by_round(
    runs: Sequence[Run], engine: str, workload: Workload, figure: Callable[[Run], float], less: bool
) -> list[float]:
    """How many times better the paged engine's figure is than the peer's, in each round that both have."""
    own = {run.round: figure(run) for run in of(runs, workload, OURS) if good([run])}
    peer = {run.round: figure(run) for run in of(runs, workload, engine) if good([run])}
    both = sorted(own.keys() & peer.keys())
    return [peer[r] / own[r] if less else own[r] / peer[r] for r in both if own[r] and peer[r]]


def _middle(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


def _e2e(run: Run) -> float:
    return median(reply.e2e for reply in good([run]))


def _ttft(run: Run) -> float:
    return median(reply.ttft or reply.e2e for reply in good([run]))


def _answers(run: Run) -> float:
    return _rate(run, lambda reply: 1)


def _tokens(run: Run) -> float:
    return _rate(run, lambda reply: reply.output_tokens)


_COMPARED: dict[str, tuple[Workload, Callable[[Run], float], bool]] = {
    "e2e": (Workload.ONE_NEW, _e2e, True),
    "ttft": (Workload.ONE_NEW, _ttft, True),
    "e2e_seen": (Workload.ONE_SEEN, _e2e, True),
    "ttft_seen": (Workload.ONE_SEEN, _ttft, True),
    "answers_per_s_8": (Workload.LOAD_8, _answers, False),
    "answers_per_s_32": (Workload.LOAD_32, _answers, False),
    "free_e2e": (Workload.FREE_200, _e2e, True),
    "free_tokens_per_s": (Workload.FREE_200, _tokens, False),
}


def where_time_goes(runs: Sequence[Run], engine: str) -> dict[str, float]:
    """Mean milliseconds of each part for requests asked one at a time, of an engine that measures its steps."""
    chosen = of(runs, Workload.ONE_NEW, engine)
    replies = [reply for reply in good(chosen) if reply.ttft is not None]
    if not replies:
        return {}
    until_first = 1000 * fmean(reply.ttft or 0.0 for reply in replies)
    whole = 1000 * fmean(reply.e2e for reply in replies)
    if not all(run.steps for run in chosen):
        return {"until the first token": until_first, "after it": whole - until_first}
    names = dict.fromkeys(name for run in chosen for name in run.steps)
    count = sum(len(run.replies) for run in chosen)
    parts = {name: 1000 * sum(run.steps.get(name, 0.0) for run in chosen) / count for name in names}
    return {**parts, OUTSIDE: whole - sum(parts.values())}


def overhead_share(split: Mapping[str, float]) -> float | None:
    """The fraction of the steps' time that is not spent in the model."""
    steps = sum(ms for name, ms in split.items() if name != OUTSIDE)
    return 1 - sum(split[name] for name in MODEL) / steps if set(MODEL) <= set(split) else None


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one engine in one workload, as the ratio of new to old; above 1 is slower."""

    workload: str
    engine: str
    figure: str
    old_ms: float
    new_ms: float
    ratio: float
    low: float
    high: float

    @property
    def is_slower(self) -> bool:
        """Whether it is slower, beyond the noise."""
        return self.low > 1 and self.ratio > SMALLEST

    @property
    def is_faster(self) -> bool:
        """Whether it is faster, beyond the noise."""
        return self.high < 1 and self.ratio < 1 / SMALLEST


def changes(old: Sequence[Run], new: Sequence[Run]) -> list[Change]:
    """The changes of all figures that both results have, in the order of the new one."""
    keys = list(dict.fromkeys((run.workload, run.engine, run.variant) for run in new))
    return [change for key in keys for change in _changes(*key, old, new)]


def _changes(
    workload: str, engine: str, variant: float | None, old: Sequence[Run], new: Sequence[Run]
) -> Iterator[Change]:
    before, after = (good(run for run in of(runs, workload, engine) if run.variant == variant) for runs in (old, new))
    name = workload if variant is None else f"{workload} {variant:g}"
    for figure in ("ttft", "tpot", "e2e"):
        first, second = _samples(before, figure), _samples(after, figure)
        if min(len(first), len(second)) >= MIN_REQUESTS:
            low, high = ratio_interval(first, second)
            medians = float(np.median(first)), float(np.median(second))
            ratio = medians[1] / medians[0]
            yield Change(name, engine, figure, 1000 * medians[0], 1000 * medians[1], ratio, low, high)


def _samples(replies: Sequence[Reply], figure: str) -> Floats:
    values = (getattr(reply, figure) for reply in replies)
    return np.array([value for value in values if value])


def ratio_interval(old: Floats, new: Floats, seed: int = 0) -> tuple[float, float]:
    """The 99 % confidence interval of the ratio of the medians."""
    rng = np.random.default_rng(seed)
    medians = [np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1) for values in (old, new)]
    low, high = np.percentile(medians[1] / medians[0], (0.5, 99.5))
    return float(low), float(high)


def compare_answers(
    runs: Sequence[Run], batches: Batches, asker: Asker, engines: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Counts of each engine's answers: all, valid ones, and those that equal the paged engine's text or query."""
    runs = [run for run in runs if run.workload in _ASKED]
    reference = {(run.workload, run.round): run for run in runs if run.engine == OURS}
    found: dict[str, dict[str, Any]] = {}
    for engine in engines:
        counts = {"answers": 0, "valid": 0, "compared": 0, "same_text": 0, "same_query": 0, "other_query": 0}
        examples: list[dict[str, Any]] = []
        for run in (run for run in runs if run.engine == engine):
            questions = batches.questions(Workload(run.workload), run.round, run.variant)
            expected = reference.get((run.workload, run.round))
            for i, (reply, inputs) in enumerate(zip(run.replies, questions, strict=True)):
                meaning = asker.meaning(inputs, reply)
                counts["answers"] += 1
                counts["valid"] += meaning is not None
                if expected is None:
                    continue
                ours = expected.replies[i]
                same = reply.text == ours.text or (meaning is not None and meaning == asker.meaning(inputs, ours))
                counts["compared"] += 1
                counts["same_text"] += reply.text == ours.text
                counts["same_query" if same else "other_query"] += 1
                if not same and len(examples) < SHOWN:
                    examples.append({"inputs": dict(inputs), "answer": reply.text, "ours": ours.text})
        if counts["answers"]:
            found[engine] = {**counts, "examples": examples}
    return found
