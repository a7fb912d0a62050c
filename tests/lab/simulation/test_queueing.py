"""The simulation against results of queueing theory, and the gateway's rules."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from lab.simulation.fleet import Fleet, Outcome, Scaling, simulate
from lab.simulation.inputs import Arrivals, ServiceTimes, bursty, generate, poisson

SERIAL = {1: 1.0}
QUANTILES = (np.arange(20_000) + 0.5) / 20_000
EXPONENTIAL = -np.log(1 - QUANTILES)  # a sample of mean 1 without randomness
CONSTANT = np.ones(1)


def run(rate: float, times: np.ndarray, fleet: Fleet, speedup: dict[int, float], count: int = 150_000) -> Outcome:
    rng = np.random.default_rng(3)
    arrivals = generate(rng, rate, count / rate, burst=1.0, num_prefixes=50)
    return simulate(fleet, ServiceTimes(times, times, speedup), arrivals, rng)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_with_exponential_times(load: float) -> None:
    """M/M/1 with service rate 1: the latency is exponential with mean 1 / (1 - load)."""
    outcome = run(load, EXPONENTIAL, Fleet(1, slots=1), SERIAL)
    assert outcome.latencies.mean() == pytest.approx(1 / (1 - load), rel=0.06)
    assert np.percentile(outcome.latencies, 99) == pytest.approx(math.log(100) / (1 - load), rel=0.1)
    assert outcome.waits.mean() == pytest.approx(load / (1 - load), rel=0.08)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_with_constant_times(load: float) -> None:
    """M/D/1: the mean wait is load / (2 (1 - load)), by Pollaczek and Khinchine."""
    outcome = run(load, CONSTANT, Fleet(1, slots=1), SERIAL)
    assert outcome.waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.06)


@pytest.mark.parametrize("as_one_replica", [True, False], ids=["one replica", "many replicas"])
def test_several_servers_and_one_queue(as_one_replica: bool) -> None:
    """M/M/c, as replicas with one slot, and as one replica whose requests do not slow each other down."""
    servers, rate = 5, 4.0
    fleet = Fleet(1, slots=servers) if as_one_replica else Fleet(servers, slots=1)
    speedup = {1: 1.0, servers: float(servers)} if as_one_replica else SERIAL
    outcome = run(rate, EXPONENTIAL, fleet, speedup)
    waiting = erlang_c(servers, rate)
    assert (outcome.waits > 0).mean() == pytest.approx(waiting, rel=0.06)
    assert outcome.waits.mean() == pytest.approx(waiting / (servers - rate), rel=0.1)


def erlang_c(servers: int, load: float) -> float:
    """Probability that a request waits."""
    full = load**servers / math.factorial(servers) * servers / (servers - load)
    return full / (sum(load**k / math.factorial(k) for k in range(servers)) + full)


@pytest.mark.parametrize("times", [EXPONENTIAL, CONSTANT], ids=["exponential", "constant"])
def test_processor_sharing(times: np.ndarray) -> None:
    """M/G/1-PS: the mean latency is 1 / (1 - load), whatever the distribution of the times."""
    outcome = run(0.7, times, Fleet(1, slots=1_000), SERIAL)
    assert outcome.latencies.mean() == pytest.approx(1 / 0.3, rel=0.06)
    assert outcome.waits.max() == 0


def test_requests_share_a_replica_exactly() -> None:
    """Two requests of 1 s at 0 and 0.5 s: half a second alone, then half speed for both."""
    arrivals = Arrivals(np.array([0.0, 0.5]), np.array([0, 1]))
    service = ServiceTimes(CONSTANT, CONSTANT, SERIAL)
    outcome = simulate(Fleet(1, slots=2), service, arrivals, np.random.default_rng(0))
    assert outcome.latencies == pytest.approx([1.5, 1.5])
    faster = ServiceTimes(CONSTANT, CONSTANT, {1: 1.0, 2: 1.5})
    outcome = simulate(Fleet(1, slots=2), faster, arrivals, np.random.default_rng(0))
    assert outcome.latencies == pytest.approx([0.5 + 0.5 / 0.75, 0.5 / 0.75 + 0.5])


def test_prefix_routing_finds_more_in_the_cache() -> None:
    """More beginnings than one cache holds, but not more than all caches together."""
    rng = np.random.default_rng(1)
    arrivals = generate(rng, 20.0, 500.0, burst=1.0, num_prefixes=200)
    service = ServiceTimes(CONSTANT, CONSTANT / 4, {1: 1.0, 32: 1.3})
    shares = [
        simulate(Fleet(20, routes_by_prefix=routed, cached_prefixes=40), service, arrivals, rng).cached_share
        for routed in (False, True)
    ]
    assert shares[1] > max(0.9, shares[0] + 0.1)


def test_a_busy_replica_passes_its_prefixes_on() -> None:
    """All requests begin alike; with prefix routing they are still shared among the replicas."""
    arrivals = Arrivals(np.zeros(40), np.zeros(40, np.int64))
    service = ServiceTimes(CONSTANT, CONSTANT, SERIAL)
    outcome = simulate(Fleet(4, routes_by_prefix=True), service, arrivals, np.random.default_rng(0))
    assert outcome.latencies.max() <= 10 + 5


def test_cold_starts() -> None:
    """No replica runs at first; it stops a minute after the first request, and starts for the second one."""
    arrivals = Arrivals(np.array([0.0, 5.0, 100.0]), np.array([0, 0, 0]))
    service = ServiceTimes(CONSTANT, CONSTANT / 2, SERIAL)
    fleet = Fleet(3, scaling=Scaling(minimum=0, cold_start=20.0, idle=60.0))
    outcome = simulate(fleet, service, arrivals, np.random.default_rng(0))
    # The first two wait for one replica and share it; the third finds it stopped, and an empty cache.
    assert outcome.waits == pytest.approx([20.0, 15.0, 20.0])
    assert outcome.latencies == pytest.approx([21.5, 16.0, 21.0])
    assert outcome.replica_seconds == pytest.approx(20 + 1.5 + 60 + 20 + 1)
    assert outcome.cached_share == pytest.approx(1 / 3)


def test_a_replica_that_runs_always_has_no_cold_start() -> None:
    arrivals = Arrivals(np.array([0.0, 500.0]), np.array([0, 0]))
    service = ServiceTimes(CONSTANT, CONSTANT, SERIAL)
    fleet = Fleet(3, scaling=Scaling(minimum=1, cold_start=20.0))
    outcome = simulate(fleet, service, arrivals, np.random.default_rng(0))
    assert outcome.latencies == pytest.approx([1.0, 1.0])
    assert outcome.replica_seconds == pytest.approx(501.0)


def test_bursts_keep_the_mean_rate() -> None:
    rng = np.random.default_rng(5)
    assert len(bursty(rng, 100.0, 60.0, 4.0)) == pytest.approx(6_000, rel=0.05)
    smooth, rough = poisson(rng, 10.0, 20_000.0), bursty(rng, 10.0, 20_000.0, 4.0)
    assert len(rough) == pytest.approx(len(smooth), rel=0.1)
    spread = [np.bincount(times.astype(int)).var() / 10 for times in (smooth, rough)]
    assert spread[0] == pytest.approx(1, abs=0.1), "a Poisson process has the variance of its mean"
    assert spread[1] > 3
    assert (np.diff(rough) >= 0).all()


def test_ten_thousand_requests_a_second_take_seconds() -> None:
    rng = np.random.default_rng(5)
    arrivals = generate(rng, 10_000.0, 6.0, burst=1.0, num_prefixes=1_000)
    service = ServiceTimes(EXPONENTIAL * 0.05, EXPONENTIAL * 0.03, {1: 1.0, 32: 1.3})
    began = time.process_time()
    outcome = simulate(Fleet(450, routes_by_prefix=True), service, arrivals, rng)
    assert len(outcome.latencies) == pytest.approx(60_000, rel=0.02)
    assert time.process_time() - began < 6, "a simulated minute takes less than a minute, on a busy machine too"
