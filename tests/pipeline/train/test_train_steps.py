"""The steps of scripts/train: what is done is not repeated, and a refused checkpoint is made in another way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pipeline.prepare.command import REFUSED
from pipeline.train.optimizer import Muon, default_rate
from pipeline.train.train_task import Step, base_steps, do_steps, done_steps, step_list, step_size
from pipeline.weights.errors import CheckpointError


class Commands:
    """Runs steps whose commands are `NAME FILE`: notes the name, and writes the file unless another code is wanted."""

    def __init__(self, codes: dict[str, int]) -> None:
        self.codes, self.ran = codes, list[str]()

    def __call__(self, command: Sequence[str]) -> int:
        name, file = Path(command[0]).name, Path(command[1])
        self.ran.append(name)
        code = self.codes.get(name, 0)
        if code == 0:
            file.write_text(name)
        return code


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    def step(name: str, instead: Step | None = None, leaves: str = "checkpoint") -> Step:
        path = tmp_path / leaves
        return Step(name, (name, str(path)), path, 1, instead=instead, because="refused")

    return [step("train", leaves="adapter"), step("prepare", step("sixteen")), step("judge", leaves="report")]


def run(steps: list[Step], folder: Path, codes: dict[str, int]) -> list[str]:
    commands = Commands(codes)
    try:
        do_steps(steps, folder / "state.json", "data", commands)
    except CheckpointError as error:
        assert "failed with exit code 1" in str(error)
    return commands.ran


def test_a_refused_checkpoint_is_made_in_16_bits(steps: list[Step], tmp_path: Path) -> None:
    assert run(steps, tmp_path, {"prepare": REFUSED}) == ["train", "prepare", "sixteen", "judge"]
    assert (tmp_path / "checkpoint").read_text() == "sixteen"
    assert run(steps, tmp_path, {}) == []


def test_a_failure_of_what_is_done_instead_goes_on_there(steps: list[Step], tmp_path: Path) -> None:
    assert run(steps, tmp_path, {"prepare": REFUSED, "sixteen": 1}) == ["train", "prepare", "sixteen"]
    assert run(steps, tmp_path, {}) == ["sixteen", "judge"]
    assert (tmp_path / "checkpoint").read_text() == "sixteen"


def test_a_resumed_plan_says_which_steps_are_done(steps: list[Step], tmp_path: Path) -> None:
    assert run(steps, tmp_path, {"prepare": REFUSED, "judge": 1}) == ["train", "prepare", "sixteen", "judge"]
    done = done_steps(steps, tmp_path / "state.json", "data")
    assert step_list(steps, done) == "[1/3] train, done before\n[2/3] prepare, done before\n[3/3] judge, about 1 min"
    assert not done_steps(steps, tmp_path / "state.json", "other data")


def test_another_failure_is_no_refusal(steps: list[Step], tmp_path: Path) -> None:
    assert run(steps, tmp_path, {"prepare": 1}) == ["train", "prepare"]
    assert run(steps, tmp_path, {}) == ["prepare", "judge"]


def test_a_base_that_an_earlier_run_left_is_no_obstacle(tmp_path: Path) -> None:
    def build(command: Sequence[str]) -> int:
        Path(command[2]).mkdir()  # as scripts/build_base, it refuses a folder that is there
        (Path(command[2]) / "config.json").write_text("{}")
        return 0

    _, steps = base_steps("smollm2-135m-instruct", tmp_path)
    (tmp_path / "base").mkdir()  # of a run that was killed before it noted the step
    for data in ("examples", "examples", "other examples"):
        do_steps(steps, tmp_path / "state.json", data, build)
        assert (tmp_path / "base" / "config.json").is_file()


STOPPED = """
import sys
from pipeline.train.train_task import run_command
child = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print(1, flush=True)"
try:
    run_command([sys.executable, "-c", child + "; time.sleep(60)"])
except KeyboardInterrupt:
    print("stopped")
"""


def test_a_step_that_ends_well_after_sigterm_is_a_stop() -> None:
    process = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == "stopped\n"


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize(("examples", "in_step"), [(50, 8), (1_500, 8), (1_600, 16), (100_000, 48)])
def test_no_thread_of_a_step_is_idle(
    examples: int, in_step: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    _, packs, _, branches = step_size(examples)
    assert int(packs) % threads == 0 or int(branches) == 1
    assert in_step <= int(packs) * int(branches) < in_step + threads


@pytest.mark.parametrize("shape", [(16, 96), (96, 16), (48, 48)], ids=str)
def test_muon_updates_as_torch_does_in_bfloat16(shape: tuple[int, int]) -> None:
    ours, torchs = (torch.nn.Parameter(torch.zeros(shape)) for _ in range(2))
    optimizers = (
        Muon([ours]),
        torch.optim.Muon([torchs], momentum=0.9, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = 0.1
    for _ in range(3):
        ours.grad = torch.randn(shape)
        torchs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.nn.functional.cosine_similarity(ours.flatten(), torchs.flatten(), dim=0) > 0.995
    assert float(ours.detach().norm() / torchs.detach().norm()) == pytest.approx(1, abs=0.02)


def test_muon_moves_all_directions_of_a_matrix_alike() -> None:
    parameter = torch.nn.Parameter(torch.zeros(8, 32))
    optimizer = Muon([parameter])
    parameter.grad = torch.diag(torch.logspace(0, -2, 8)) @ torch.linalg.qr(torch.randn(32, 8)).Q.T
    optimizer.step()
    sizes = torch.linalg.svdvals(parameter.detach())
    assert float(sizes.max() / sizes.min()) < 3, sizes  # 100 in the gradient


def test_muon_takes_smaller_steps_in_larger_bases() -> None:
    rates = [default_rate("muon", parameters) for parameters in (10**6, 135 * 10**6, 494 * 10**6, 7 * 10**9)]
    assert rates == sorted(rates, reverse=True)
    assert rates[2] < rates[1] / 3


def test_an_unknown_base_is_refused_before_the_plan(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'nobase' is neither.*known are .*smollm2"):
        base_steps("nobase", tmp_path)
