"""Recommends a card, the number of replicas, batch or real-time, and serverless or dedicated hosting, with reasons.

The constants below are assumptions about hosts and engines, not measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.plan.memory_budget import ModelShape
from pipeline.plan.speed import Fit

_MAX_UTILIZATION: Final = 0.7  # above this, requests queue for long (M/M/1: they wait 2.3 service times at 0.7)
_BATCH_LATENCY: Final = 300.0  # seconds; if answers may take longer, the work counts as a batch
_ENGINE_START: Final = 60.0  # seconds; vLLM with compilation
_LOAD_BANDWIDTH: Final = 0.5e9  # bytes per second from a registry or hub to the card
_IDLE_SECONDS: Final = 60.0  # a serverless replica is shut down after this time without a request
_DEDICATED_FROM: Final = 0.8  # a replica that is billed for a larger share of the time should run always
DEFAULT_EFFICIENCY: Final = 0.4  # share of the roofline that an engine reaches


@dataclass(frozen=True, slots=True)
class Demand:
    """The load that the service has to carry.

    Args:
        requests_per_second: the average rate.
        burst: peak rate divided by average rate, at least 1.
        latency: seconds that an answer may take; None for batch work, where nobody waits.
        efficiency: share of the roofline that the engine reaches, in (0, 1].
    """

    requests_per_second: float
    burst: float = 3.0
    latency: float | None = None
    efficiency: float = DEFAULT_EFFICIENCY


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation for one card; `in_time`: whether a request alone on the card meets the latency limit."""

    gpu: str
    in_time: bool
    mode: str  # "real-time" or "batch"
    hosting: str  # "serverless" or "dedicated"
    replicas: int
    cold_start_seconds: float
    dollars_per_day: float | None
    reasons: tuple[str, ...]


def choose(shape: ModelShape, fits: Sequence[Fit], demand: Demand, price: float | None) -> Advice | None:
    """Advice for the cheapest card that is fast enough, or else for the fastest; None if the model fits no card.

    Args:
        price: dollars per second for every card; None uses the table's prices and prefers cards that have one.
    """
    known = [fit for fit in fits if fit.fits and (price or fit.gpu.price) is not None]
    pairs = [
        (fit, advise(shape, fit, demand, fit.gpu.price if price is None else price))
        for fit in known or [fit for fit in fits if fit.fits]
    ]
    in_time = [pair for pair in pairs if pair[1].in_time]
    if in_time:
        return min(in_time, key=lambda pair: (pair[1].dollars_per_day or 0.0, pair[0].answer_seconds))[1]
    return min(pairs, key=lambda pair: pair[0].answer_seconds)[1] if pairs else None


def advise(shape: ModelShape, fit: Fit, demand: Demand, price: float | None) -> Advice:
    """How to run the model on `fit.gpu`; `price` is in dollars per second, None if unknown."""
    rate = demand.efficiency * fit.answers_per_second
    cold = _ENGINE_START + shape.weight_bytes / _LOAD_BANDWIDTH
    mode, reasons = _mode(demand)
    wanted = demand.requests_per_second * (demand.burst if mode == "real-time" else 1.0)
    replicas = max(1, math.ceil(wanted / (_MAX_UTILIZATION * rate)))
    reasons.append(
        f"{replicas} x {fit.gpu.name}: {wanted:g} requests/s at peak, {rate:.3g} answers/s per replica "
        f"({demand.efficiency:.0%} of the roofline), at most {_MAX_UTILIZATION:.0%} utilization"
    )
    alone = fit.answer_seconds / demand.efficiency
    in_time = demand.latency is None or alone <= demand.latency
    if not in_time:
        reasons.append(
            f"one request takes about {alone:.2g} s, more than the limit of {demand.latency:g} s: use a faster card"
        )
    hosting, online, reason = _hosting(demand, mode, cold)
    if mode == "batch":
        online = demand.requests_per_second / (rate * replicas)
    dollars = None if price is None else price * 86_400 * online * replicas
    return Advice(fit.gpu.name, in_time, mode, hosting, replicas, cold, dollars, (*reasons, reason))


def _mode(demand: Demand) -> tuple[str, list[str]]:
    if demand.latency is None or demand.latency > _BATCH_LATENCY:
        return "batch", [
            "no caller waits for the answers: run the inputs as a batch job, which keeps the card fully used"
        ]
    return "real-time", [f"answers must come within {demand.latency:g} s"]


def _hosting(demand: Demand, mode: str, cold: float) -> tuple[str, float, str]:
    """Hosting, the share of the time for which a replica is billed, and the reason."""
    if mode == "batch":
        return "serverless", 0.0, "a batch job is billed only for the seconds in which it runs"
    rate = demand.requests_per_second
    # With Poisson arrivals, a replica that is shut down after an idle time W runs for a share 1 - exp(-rate W) of the
    # time, and starts rate exp(-rate W) times per second.
    asleep = math.exp(-rate * _IDLE_SECONDS)
    online = min(1.0, (1.0 - asleep) + rate * asleep * cold)
    if online > _DEDICATED_FROM:
        return (
            "dedicated",
            1.0,
            (
                f"with a request every {1 / rate:,.3g} s, a serverless replica runs {online:.0%} of the time (it stops "
                f"after {_IDLE_SECONDS:g} s without one): a dedicated one costs about the same and has no cold starts"
            ),
        )
    if demand.latency is not None and demand.latency < cold:
        return (
            "dedicated",
            1.0,
            (
                f"{asleep:.0%} of the requests would have to wait for a cold start of about {cold:,.0f} s, more than "
                f"the limit of {demand.latency:g} s; serverless would be billed {online:.0%} of the time"
            ),
        )
    return "serverless", online, f"billed {online:.0%} of the time; {asleep:.0%} of the requests wait for a cold start"
