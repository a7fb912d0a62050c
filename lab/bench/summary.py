"""Compute the figures of a result from its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from lab.bench.measure import Run
from lab.bench.peers import OURS
from lab.bench.protocol import Reply
from lab.bench.workloads import Workload

LOADS = {8: Workload.LOAD_8, 32: Workload.LOAD_32}


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
    for users, workload in LOADS.items():
        load = of(runs, workload, engine)
        if good(load):
            figures[f"answers_per_s_{users}"] = median(_rate(run, lambda r: 1) for run in load)
            figures[f"tokens_per_s_{users}"] = median(_rate(run, lambda r: r.output_tokens) for run in load)
            figures |= {f"{k}_{users}": v for k, v in _spread(good(load)).items()}
    for workload in (Workload.FREE_200,):
        if replies := good(of(runs, workload, engine)):
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


def passes_per_answer(runs: Sequence[Run], engine: str = OURS) -> float | None:
    """Mean passes of an answer over the evaluation set or, without one, over requests asked one at a time."""
    for workload in (Workload.EVALUATION, Workload.ONE_NEW):
        if replies := good(of(runs, workload, engine)):
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
