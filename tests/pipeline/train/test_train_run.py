"""A training run lowers the loss, ends on time, can be interrupted, and writes a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pipeline.train import command
from pipeline.train.lora_model import LoraModel
from pipeline.train.optimizer import OPTIMIZERS
from pipeline.train.packing import make_pack
from pipeline.train.record import Point, RunRecord
from pipeline.train.trainer import Trainer, TrainSettings, learning_rate
from tests.pipeline.train.training_fixtures import some_examples, write_base


def settings(**changes: object) -> TrainSettings:
    values = {
        "peak_rate": 1e-2, "packs_per_step": 2, "minutes": 10.0, "epochs": 20.0,
        "seed": 0, "workers": 2, "base_name": "base", "curve_every": 1,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


class Clock:
    """Each call advances the time by ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10
        return self.now


def make_trainer(
    base: Path,
    output: Path,
    record: RunRecord | None = None,
    *,
    report: Callable[[str, float], None] = lambda text, progress: None,
    **changes: object,
) -> Trainer:
    torch.manual_seed(0)
    model = LoraModel.load(base, 4, 8)
    examples = some_examples()
    packs = [make_pack(examples), make_pack(examples[:1]), make_pack(examples[1:])]
    output.mkdir(exist_ok=True)
    return Trainer(
        model, packs, 6, packs[:1], output, settings(**changes), record or RunRecord({}, []),
        report=report, clock=Clock(),
    )  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_loss_goes_down_and_the_record_says_so(base: Path, tmp_path: Path, optimizer: str) -> None:
    record = make_trainer(base, tmp_path / "out", optimizer=optimizer).run()
    losses = [p.loss for p in record.train_curve]
    assert losses[-1] < 0.5 * losses[0]
    assert record.finished
    assert record.samples >= 120
    assert (tmp_path / "out" / "loss.png").stat().st_size > 1000
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert written["steps"] == record.steps == len(losses)
    assert written["validation_curve"][-1]["samples"] == record.samples
    assert written["hardware"]["torch"] == torch.__version__


def test_time_ends_a_run_with_the_rate_decayed(base: Path, tmp_path: Path) -> None:
    """With a schedule of steps only, a run on a busy machine would end at a high learning rate."""
    record = make_trainer(base, tmp_path / "out", minutes=3.0, epochs=1e6).run()
    assert record.finished
    assert 3 * 60 <= record.seconds < 3 * 60 + 40
    assert record.train_curve[-1].learning_rate < 0.1 * settings().peak_rate


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_interrupted_run_continues_as_if_it_had_not_stopped(base: Path, tmp_path: Path, optimizer: str) -> None:
    changes = {"epochs": 4.0, "optimizer": optimizer}
    whole = make_trainer(base, tmp_path / "whole", **changes)
    whole.run()

    def stop(text: str, progress: float) -> None:
        first.stop_requested = first.record.steps >= 2

    first = make_trainer(base, tmp_path / "parts", report=stop, **changes)
    stopped = first.run()
    assert not stopped.finished
    second = make_trainer(base, tmp_path / "parts", RunRecord.load(tmp_path / "parts"), **changes)
    second.restore()
    second.run()

    assert second.record.steps == whole.record.steps
    for there, here in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4)


def test_two_threads_give_the_same_training_as_one(base: Path, tmp_path: Path) -> None:
    runs = [make_trainer(base, tmp_path / str(n), workers=n, epochs=2.0) for n in (1, 2)]
    for trainer in runs:
        trainer.run()
    for one, two in zip(*(trainer.model.parameters() for trainer in runs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_learning_rate_warms_up_peaks_and_decays() -> None:
    rates = [learning_rate(x / 100, peak=1.0) for x in range(101)]
    assert rates[0] < 0.05
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 3
    assert rates[-1] == pytest.approx(0.02)
    assert all(a >= b for a, b in pairwise(rates[3:]))


def write_data(folder: Path, count: int) -> None:
    folder.mkdir()
    lines = [{"nlq": f"q{i}", "cols": ["a", f"b{i // 4}"], "query": '{"limit": 1}'} for i in range(count)]
    for name in ("train", "validation"):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(x) for x in lines))


def run_command(tmp_path: Path, *more: str) -> str:
    arguments = [
        "--base", str(tmp_path / "base"), "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out"),
        "--rank", "2", "--packs", "1", "--epochs", "1", *more,
    ]  # fmt: skip
    result = CliRunner().invoke(command.app, arguments)
    return f"{result.exit_code} {result.output}"


def test_the_command_trains_resumes_with_new_data_and_continues_an_adapter(base: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "data", 8)
    assert run_command(tmp_path).startswith("0 ")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["samples"] == 8
    assert run["finished"]

    (tmp_path / "data" / "train.jsonl").write_text((tmp_path / "data" / "train.jsonl").read_text() + "\n")
    assert run_command(tmp_path, "--resume", "--epochs", "2").startswith("0 ")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [d.get("since_samples") for d in run["data"]] == [None, 8]
    assert run["samples"] == 16

    assert "--optimizer as in the first run" in run_command(tmp_path, "--resume", "--optimizer", "muon")
    assert "adamw, muon" in run_command(tmp_path, "--optimizer", "sgd")
    assert "this run has 4,512" in run_command(tmp_path, "--resume", "--rank", "3")

    adapter = tmp_path / "out"
    assert run_command(tmp_path, "--init", str(adapter)).startswith("0 ")
    wrong = run_command(tmp_path, "--init", str(adapter), "--rank", "3")
    assert wrong.startswith("1 ")
    assert "--rank 2" in wrong
    assert "no bf16" in run_command(tmp_path, "--dtype", "bf16") or torch.cpu.get_capabilities().get("avx512_bf16")


def test_the_curves_of_a_run_and_of_one_that_goes_on_from_it_are_one() -> None:
    first, second = (
        RunRecord({}, [], samples=samples, train_curve=[Point(1, 8, 1.0, loss), Point(2, samples, 2.0, loss)])
        for samples, loss in ((16, 0.5), (12, 0.1))
    )
    both = first.followed_by(second)
    assert [(point.samples, point.loss) for point in both.train_curve] == [(8, 0.5), (16, 0.5), (24, 0.1), (28, 0.1)]
    assert [point.samples for point in first.train_curve] == [8, 16]
