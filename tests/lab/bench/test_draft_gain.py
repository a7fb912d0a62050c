"""The model of how much drafts gain: bounds, and its prediction beside a measurement that it was not made from."""

import json

import pytest

from lab.bench.draft_gain import DRAFTING, PassCosts, gpu_costs, main, measured_costs
from pipeline.paths import ROOT
from pipeline.plan.speed import GPUS

RESULT = ROOT / "docs/results/bench-drafts.json"


def test_the_gain_grows_with_the_share_of_decoding_up_to_the_ratio_of_the_passes() -> None:
    gains = [PassCosts(prefill, 20, 20).gain(tokens=61, passes=4) for prefill in (10_000, 1_000, 100, 0)]
    shares = [PassCosts(prefill, 20, 20).decoding_share(61) for prefill in (10_000, 1_000, 100, 0)]
    assert gains == sorted(gains) and shares == sorted(shares)
    assert gains[-1] == pytest.approx(60 / 3) and shares[-1] == 1


def test_drafts_that_cost_what_they_save_gain_nothing() -> None:
    assert PassCosts(prefill=100, one=10, drafted=60).gain(tokens=61, passes=11) == pytest.approx(1)


def test_costs_of_new_columns_predict_the_gain_with_columns_seen_before() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    alone, drafts = (result["engines"][name] for name in ("vllm", "vllm-drafts"))
    costs = measured_costs(result)
    seen = PassCosts(alone["ttft_ms_seen"], costs.one, costs.drafted)
    predicted = seen.gain(alone["passes_seen"], drafts["passes_seen"])
    assert predicted == pytest.approx(alone["e2e_ms_p50_seen"] / drafts["e2e_ms_p50_seen"], rel=0.15)


def test_the_rows_of_drafts_cost_a_gpu_time_only_when_arithmetic_limits_it() -> None:
    for gpu in GPUS:
        few, many = gpu_costs(gpu, rows=8), gpu_costs(gpu, rows=2_000)
        assert few.drafted == few.one + DRAFTING
        assert many.drafted > many.one + DRAFTING


def test_the_table_has_a_row_for_each_result_and_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(RESULT)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| honeycomb-nlq-small, measured | ")
    assert [line.split(",")[0] for line in lines[3:]] == [
        f"| Mistral-7B on one {name}" for name in ("L4", "A100-80", "H100")
    ]
