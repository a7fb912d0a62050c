"""Service times from a result of scripts/dev/bench, the fewest replicas, recorded arrivals, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from lab.bench.protocol import arrival_times
from lab.simulation.capacity import fewest_replicas, measure
from lab.simulation.command import compare, main
from lab.simulation.fleet import Fleet, Scaling, simulate
from lab.simulation.inputs import (
    Arrivals,
    ServiceTimes,
    SimulationError,
    generate,
    read_arrivals,
    read_service_times,
)

SERVICE = ServiceTimes(np.linspace(0.04, 0.08, 50), np.linspace(0.02, 0.04, 50), {1: 1.0, 8: 1.3, 32: 1.4})


def bench(path: Path) -> Path:
    """A result with the workloads that are read, of two engines and a variant."""

    def run(workload: str, seconds: list[float], wall: float, users: int = 1, **other: Any) -> dict[str, Any]:
        replies = [{"e2e": second} for second in seconds]
        given = {"engine": "paged", "variant": None, "workload": workload, "wall": wall}
        return {**given, "concurrency": users, "replies": replies, **other}

    runs = [
        run("one-new", [0.04, 0.06], 0.1),
        run("one-new", [9.0], 9.0, engine="other"),
        run("one-new", [9.0], 9.0, variant="seen twice"),
        run("one-seen", [0.02], 0.02),
        run("load-8", [0.3] * 40, 1.0, users=8),
        run("load-32", [0.3] * 60, 2.0, users=32),
        run("load-32", [0.3] * 60, 1.0, users=32),
    ]
    path.write_text(json.dumps({"runs": runs}))
    return path


def test_service_times_are_those_of_the_engine(tmp_path: Path) -> None:
    service = read_service_times(bench(tmp_path / "bench.json"), "paged")
    assert (service.new.tolist(), service.seen.tolist()) == ([0.04, 0.06], [0.02])
    # Alone, a replica gives 20 answers a second; with 8 users 40, with 32 45 on average.
    assert service.speedup == pytest.approx({1: 1.0, 8: 2.0, 32: 2.25})
    assert service.speeds(40)[20] == pytest.approx(2.125)
    assert service.speeds(40)[40] == pytest.approx(2.25)


def test_a_committed_result_can_be_read() -> None:
    result = Path(__file__).resolve().parents[3] / "docs" / "results" / "bench-2026-11-22-kernels.json"
    service = read_service_times(result, "paged")
    assert service.seen.mean() < service.new.mean()


@pytest.mark.parametrize(("engine", "message"), [("none", "one-new of the engine none"), (None, "no result")])
def test_a_file_without_service_times_is_refused(tmp_path: Path, engine: str | None, message: str) -> None:
    path = bench(tmp_path / "bench.json") if engine else tmp_path / "no.json"
    with pytest.raises(SimulationError, match=message):
        read_service_times(path, engine or "paged")


def test_one_replica_fewer_does_not_hold_the_limit() -> None:
    arrivals = generate(np.random.default_rng(0), 200.0, 40.0, burst=1.0, num_prefixes=300)
    fleet = Fleet(1)
    found = fewest_replicas(fleet, SERVICE, arrivals, p99=0.3)
    assert found is not None
    assert found.p99 <= 0.3
    assert measure(replace(fleet, replicas=found.replicas - 1), SERVICE, arrivals, 0).p99 > 0.3
    routed = fewest_replicas(replace(fleet, routes_by_prefix=True, cached_prefixes=60), SERVICE, arrivals, p99=0.3)
    assert routed is not None
    assert routed.replicas <= found.replicas
    assert 200 * 0.03 / 1.4 < routed.replicas < 200 * 0.06, "between all cached, and all new and alone"


def test_a_limit_below_the_service_time_is_held_by_no_number() -> None:
    arrivals = generate(np.random.default_rng(0), 10.0, 100.0, burst=1.0, num_prefixes=10)
    assert fewest_replicas(Fleet(1), SERVICE, arrivals, p99=0.03) is None


def test_cold_starts_break_a_short_limit() -> None:
    """Each burst waits for replicas that stopped after the one before, however many there may be."""
    arrivals = generate(np.random.default_rng(0), 20.0, 300.0, burst=5.0, num_prefixes=10)
    slow = Fleet(1, slots=1, scaling=Scaling(minimum=1, cold_start=30.0, idle=1.0))
    assert fewest_replicas(replace(slow, scaling=None), SERVICE, arrivals, p99=0.5) is not None
    assert fewest_replicas(slow, SERVICE, arrivals, p99=0.5) is None


def test_recorded_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.jsonl"
    path.write_text('{"at": 12, "prefix": "a"}\n{"at": 10.5, "prefix": "b"}\n\n{"at": 13, "prefix": "a"}\n{"at": 14}\n')
    arrivals = read_arrivals(path)
    assert arrivals.times.tolist() == [0.0, 1.5, 2.5, 3.5]
    assert arrivals.prefixes.tolist() == [0, 1, 1, 2]
    for text in ('{"time": 1}\n', "[]\n", "", "x"):
        path.write_text(text)
        with pytest.raises(SimulationError, match="at"):
            read_arrivals(path)


def run(*arguments: object) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_the_command_plans_with_and_without_prefix_routing(tmp_path: Path) -> None:
    result = bench(tmp_path / "bench.json")
    out = tmp_path / "plan.json"
    code, output = run("--simulate", result, "--p99", 0.2, "--rps", 1, "--rps", 150, "--json", out)
    assert code == 0, output
    found = json.loads(out.read_text())["plans"]
    assert [plan["routes_by_prefix"] for plan in found] == [False, True] * 2
    assert [round(plan["rate"], -1) for plan in found] == [0, 0, 150, 150]
    assert found[0]["found"]["replicas"] == 1
    assert all(plan["found"]["p99"] <= 0.2 for plan in found)
    code, output = run("--simulate", result, "--p99", 0.2, "--engine", "vllm")
    assert (code, "Traceback" in output) == (1, False)


def open_load(rate: float, slowdown: float = 1.0) -> dict[str, Any]:
    """What a replica that is as the simulation assumes would be measured to take, or one that is slower."""
    times = arrival_times(60, rate)
    arrivals = Arrivals(np.array(times), np.arange(60))
    outcome = simulate(Fleet(1), SERVICE, arrivals, np.random.default_rng(7))
    replies = [{"e2e": slowdown * second} for second in outcome.latencies]
    return {"engine": "paged", "variant": rate, "workload": "open", "wall": times[-1], "replies": replies}


def test_a_replica_is_compared_with_measured_latencies(tmp_path: Path) -> None:
    def result(*loads: dict[str, Any]) -> Path:
        path = tmp_path / "bench.json"
        runs = [
            {"workload": name, "engine": "paged", "variant": None, "concurrency": users, "wall": wall, "replies": one}
            for name, users, wall, one in [
                ("one-new", 1, 3.0, [{"e2e": second} for second in SERVICE.new]),
                ("one-seen", 1, 1.5, [{"e2e": second} for second in SERVICE.seen]),
                ("load-8", 8, 50 * SERVICE.new.mean() / 1.3, [{"e2e": 1.0}] * 50),
                ("load-32", 32, 50 * SERVICE.new.mean() / 1.4, [{"e2e": 1.0}] * 50),
            ]
        ]
        path.write_text(json.dumps({"runs": [*runs, *loads]}))
        return path

    right = compare(result(open_load(2.0), open_load(12.0)), "paged", Console(quiet=True))
    assert [(one.rate, one.percentile) for one in right] == [(2.0, 50), (2.0, 95), (12.0, 50), (12.0, 95)]
    assert all(one.low <= one.measured <= one.high for one in right)
    wrong = compare(result(open_load(12.0, slowdown=1.5)), "paged", Console(quiet=True))
    assert all(one.measured > one.high for one in wrong)
    out = tmp_path / "check.json"
    code, output = run("--simulate", result(open_load(2.0)), "--check", "--json", out)
    assert (code, len(json.loads(out.read_text())["compared"])) == (0, 2), output
    code, output = run("--simulate", result(), "--check")
    assert code == 1 and "no workload open" in output
    assert run("--simulate", result())[0] == 2, "neither --p99 nor --check"
