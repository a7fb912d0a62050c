"""A draft model from a log of prompts and answers, and the wheel for people who serve with vLLM alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.package.package_wheel import write_vllm_wheel
from pipeline.train.errors import TrainingError
from pipeline.train.log_drafter import count_passes, train_from_log
from serving.drafting.drafter import DraftRequest
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.weights.draft_weights import DRAFT_MODEL
from tests.pipeline.train.training_fixtures import write_base

WORDS = ["york", "bath", "leeds", "derby", "truro", "wells", "ripon", "salford"]


class Prophet(SpeculativeDrafter):
    """Drafts the answer, of which every third draft is wrong."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__(None, cost=LinearCost(0.06))
        self.answer = answer

    def propose(self, request: DraftRequest, max_tokens: int) -> list[int]:
        super().propose(request, max_tokens)
        begin = len(request.output_token_ids)
        return [token if i % 3 < 2 else -1 for i, token in enumerate(self.answer[begin:])]

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        """Trust does not matter here."""


@pytest.mark.parametrize(
    ("length", "passes"),
    [(0, 1), (1, 2), (3, 2), (4, 3), (7, 4)],  # one token of the prompt's pass, then two drafts and one more a pass
)
def test_passes_are_those_that_a_model_with_this_answer_would_need(length: int, passes: int) -> None:
    answer = list(range(10, 10 + length))
    assert count_passes(Prophet(answer), [([1, 2, 3], answer)]) == passes


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Nothing is compiled, which would take longer than the training; threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.compiler.set_stance("force_eager"):
        yield
    torch.set_num_threads(before)


def log(path: Path, count: int) -> Path:
    """Each answer has the partners of two words of its prompt, the second first: nothing is there to repeat."""
    lines = []
    for number in range(count):
        first, second = number * 5 % len(WORDS), number * 3 // len(WORDS) % len(WORDS)
        answer = f"{WORDS[(second + 3) % len(WORDS)]} to {WORDS[(first + 3) % len(WORDS)]}"
        lines.append({"prompt": f"### Text:\n{WORDS[first]} {WORDS[second]}\n### Route:\n", "answer": answer})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_log_gives_a_draft_model_that_the_next_log_must_beat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    write_base(base)
    path = log(tmp_path / "log.jsonl", 200)
    assert train_from_log(path, base, minutes=60, max_steps=150)
    made = (base / DRAFT_MODEL).read_bytes()
    capsys.readouterr()
    is_kept = train_from_log(path, base, minutes=60, max_steps=1)
    said = re.search(r"with the one that is there ([\d.]+), with the new one ([\d.]+)", capsys.readouterr().err)
    assert said is not None and is_kept == (float(said[2]) < float(said[1]))
    assert ((base / DRAFT_MODEL).read_bytes() != made) == is_kept


def test_a_log_that_is_too_short_or_broken_is_named(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_base(base)
    with pytest.raises(TrainingError, match="3 answers are too few; give at least 20"):
        train_from_log(log(tmp_path / "log.jsonl", 3), base)
    (tmp_path / "log.jsonl").write_text('{"prompt": "a", "answer": 1}\n')
    with pytest.raises(TrainingError, match=r"log.jsonl:1: a line is"):
        train_from_log(tmp_path / "log.jsonl", base)


def test_the_wheel_has_all_that_the_trainer_imports_and_no_server(tmp_path: Path) -> None:
    wheel = write_vllm_wheel(tmp_path)
    assert write_vllm_wheel(tmp_path).read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pipeline.train.log_drafter as trainer;"
        "assert trainer.__file__.startswith(sys.argv[1]);"
        "print(sorted({'cog', 'aiohttp', 'fastapi', 'gateway', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "site"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
    names = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.py")}
    assert "serving/engines/vllm/draft_worker.py" in names and not any(name.startswith("gateway/") for name in names)
