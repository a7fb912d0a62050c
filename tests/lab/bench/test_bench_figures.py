"""Medians, ratios, regressions and the division of time, on invented measurements."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lab.bench.figures import (
    changes,
    engine_figures,
    overhead_share,
    passes_per_answer,
    ratio_interval,
    ratios,
    where_time_goes,
)
from lab.bench.lineup import Entry
from lab.bench.peers import PEERS
from lab.bench.plots import draw_plots
from lab.bench.result import ResultError, last_line, make_result, read_result, read_runs, write_result
from lab.bench.session import is_saturated
from tests.lab.bench.bench_fixtures import make_run

ABOUT = {
    "version": 1,
    "commit": "0" * 40,
    "date": "2026-01-01T00:00:00+00:00",
    "machine": {"cpu": "toy", "cores": 2},
}


def test_summary_of_one_engine() -> None:
    runs = [make_run("paged", 0.2, noise=0), make_run("paged", 0.8, workload="load-8", noise=0)]
    figures = engine_figures(runs, "paged")
    assert figures["e2e_ms_p50"] == pytest.approx(200)
    assert figures["ttft_ms"] == pytest.approx(60)
    assert figures["tpot_ms"] == pytest.approx(140 / 49)
    assert figures["tokens_per_s"] == pytest.approx(250)
    assert figures["answers_per_s_8"] == pytest.approx(1 / 0.8)
    assert (figures["passes"], figures["errors"]) == (10, 0)
    assert "answers_per_s_32" not in figures, "not measured, so not reported"


def test_an_error_is_counted_and_is_not_an_answer() -> None:
    run = make_run("paged", 0.2, noise=0)
    failed = dataclasses.replace(run.replies[0], e2e=99.0, error="EngineDeadError: gone")
    figures = engine_figures([dataclasses.replace(run, replies=(failed, *run.replies[1:]))], "paged")
    assert figures["errors"] == 1
    assert figures["e2e_ms_p95"] == pytest.approx(200)


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was half as fast in the second round, for both: that changes no ratio."""
    runs = [make_run(name, t * (1 + r), number=r) for r in (0, 1) for name, t in (("paged", 0.1), ("vllm", 0.6))]
    found = ratios(runs, ["paged", "vllm", "llama"])
    assert set(found) == {"vllm"}
    assert found["vllm"]["e2e"]["median"] == pytest.approx(6, rel=0.05)
    assert found["vllm"]["e2e"]["high"] < 6.5


def test_throughput_ratios_are_over_1_when_we_are_better() -> None:
    runs = [make_run(name, t, workload="load-32") for name, t in (("paged", 0.1), ("vllm", 0.3))]
    assert ratios(runs, ["vllm"])["vllm"]["answers_per_s_32"]["median"] == pytest.approx(3, rel=0.1)


def test_passes_are_those_of_the_evaluation_set_if_it_was_measured() -> None:
    one, evaluation = make_run("paged", 0.1), make_run("paged", 0.1, workload="evaluation")
    fewer = tuple(dataclasses.replace(reply, passes=8) for reply in evaluation.replies)
    assert passes_per_answer([one]) == 10
    assert passes_per_answer([one, dataclasses.replace(evaluation, replies=fewer)]) == 8
    assert passes_per_answer([make_run("vllm", 0.1)]) is None


def test_noise_is_not_a_change_and_a_fifth_slower_is() -> None:
    old = [make_run("paged", 0.100), make_run("vllm", 0.5)]
    new = [make_run("paged", 0.121), make_run("vllm", 0.501)]
    found = {(c.engine, c.figure): c for c in changes(old, new)}
    assert found["paged", "e2e"].is_slower
    assert found["paged", "e2e"].ratio == pytest.approx(1.2, rel=0.05)
    assert not found["vllm", "e2e"].is_slower and not found["vllm", "e2e"].is_faster
    back = {(c.engine, c.figure): c for c in changes(new, old)}
    assert back["paged", "e2e"].is_faster


def test_large_noise_hides_a_small_change() -> None:
    old, new = [make_run("paged", 0.100, noise=0.9)], [make_run("paged", 0.104, noise=0.9)]
    assert not any(c.is_slower or c.is_faster for c in changes(old, new))


def test_measurements_in_only_one_result_are_not_compared() -> None:
    assert changes([make_run("paged", 0.1)], [make_run("llama", 0.1), make_run("paged", 0.1, variant=2.0)]) == []


def test_the_interval_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for seed in range(40):
        low, high = ratio_interval(rng.normal(1.0, 0.2, 30), rng.normal(1.5, 0.2, 30), seed)
        inside += low <= 1.5 <= high
    assert inside >= 34


def test_an_engine_that_keeps_up_is_not_saturated() -> None:
    run = make_run("paged", 0.1, workload="open", variant=2.0)
    keeps_up = dataclasses.replace(run, wall=10.3, last_arrival=10.1)
    assert not is_saturated(keeps_up)
    assert is_saturated(dataclasses.replace(keeps_up, wall=14.0))
    # Poisson arrivals may by chance take more time than their rate says
    assert not is_saturated(dataclasses.replace(keeps_up, wall=14.0, last_arrival=13.8))


def test_a_request_is_split_into_model_and_everything_else() -> None:
    steps = {"schedule, draft": 0.2, "prefill": 1.0, "decode": 2.0, "grammar": 0.2, "head": 0.4}
    timed = dataclasses.replace(make_run("paged", 0.2, noise=0), steps=steps)  # 20 requests
    split = where_time_goes([timed, timed], "paged")
    assert sum(split.values()) == pytest.approx(200)
    assert split["prefill"] == pytest.approx(50)
    assert split["outside steps"] == pytest.approx(200 - 190)
    assert overhead_share(split) == pytest.approx(0.4 / 3.8)
    assert set(where_time_goes([make_run("vllm", 0.2)], "vllm")) == {
        "until the first token",
        "after it",
    }


def test_a_result_is_read_back_from_its_file_and_the_last_line_is_one_object(tmp_path: Path) -> None:
    runs = [make_run("paged", 0.1, text='{"a": "größe"}'), make_run("llama", 0.4)]
    failed = Entry(PEERS["vllm"], error="no such wheel")
    result = make_result(
        runs,
        {"paged": Entry(PEERS["paged"], ready_seconds=[2.0, 3.0]), "llama": Entry(PEERS["llama"]), "vllm": failed},
        ABOUT,
    )
    write_result(result, tmp_path / "deep" / "result.json")
    again = read_result(tmp_path / "deep" / "result.json")
    assert again == json.loads(json.dumps(result))
    read = read_runs(again)
    assert [run.replies[3].text for run in read] == [run.replies[3].text for run in runs]
    assert read[0].replies[3].e2e == pytest.approx(runs[0].replies[3].e2e, abs=1e-6)
    line = last_line(result)
    assert "\n" not in line
    printed = json.loads(line)
    assert printed["passes_per_answer"] == 10
    assert printed["engines"]["paged"]["ready_s"] == 2.5
    assert printed["engines"]["vllm"]["error"] == "no such wheel"
    assert printed["ratios"]["llama"]["e2e"]["median"] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 999}'])
def test_a_file_that_is_not_a_result_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ResultError, match=r"x\.json"):
        read_result(tmp_path / "x.json")


def test_plots_are_drawn_of_the_available_measurements(tmp_path: Path) -> None:
    runs = [make_run("paged", 0.1), make_run("paged", 0.1, workload="open", variant=2.0)]
    drawn = draw_plots(make_result(runs, {"paged": Entry(PEERS["paged"])}, ABOUT), tmp_path)
    assert [path.name for path in drawn] == [f"bench_{n}.png" for n in ("latency", "open_loop")]
    assert draw_plots(make_result([], {}, ABOUT), tmp_path) == []
