"""A draft model is trained for its time where compiling takes long, and where nothing can be compiled."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from pipeline.train.draft_examples import Pair, batch_tensors
from pipeline.train.draft_fit import calibrate, evaluate, start_network, train
from pipeline.train.draft_network import DraftNetwork


def test_the_first_step_which_compiles_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes pass in the first step and one in each other."""
    now, examples = 0.0, 0

    def change(pair: Pair) -> Pair:
        nonlocal now, examples
        now, examples = now + (60 if examples else 600), examples + 1
        return pair

    monkeypatch.setattr(time, "monotonic", lambda: now)
    network = DraftNetwork(torch.randn(20, 32), size=32, num_layers=1)
    options = {"minutes": 4.5, "rate": 1e-3, "batch": 1, "order": random.Random(0)}
    steps = train(network, [([[1, 2]], [3])], **options, change=change, report=lambda *_: None)
    assert steps == 1 + 5


def test_without_a_compiler_the_network_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    network = start_network(tmp_path, torch.randn(20, 32), 32, 1, None)
    assert "not compiled" in capsys.readouterr().err
    loss, _ = network.loss(*batch_tensors([([[1, 2]], [3])]))
    assert loss > 0


def test_a_network_that_is_too_sure_is_scaled_and_guesses_the_same() -> None:
    torch.manual_seed(0)
    network = DraftNetwork(torch.randn(20, 32), size=32, num_layers=1)
    pairs: list[Pair] = [([[1, 2, token]], [token, 3]) for token in range(4, 20)]
    network.scale_logits(20.0)
    before, right = evaluate(network, pairs, 4)
    factor = calibrate(network, pairs, 4)
    after, still_right = evaluate(network, pairs, 4)
    assert factor < 0.5 and after < 0.7 * before
    assert still_right == right
