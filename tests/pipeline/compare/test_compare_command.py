"""scripts/compare from the command line: exit codes, the report, and scores with the real engine."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from pipeline.compare.command import app
from serving.config import Settings
from serving.engine import create_engine
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.serving.models import tiny_checkpoints

PROMPTS = ("the slowest traces", "count by name", "last hour")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A random model with a chat task without a chat template."""
    tokenizer = tiny_tokenizers.byte_level()
    folder = tmp_path / "before"
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=tokenizer.vocab_size, eos_token_id=0), folder)
    tiny_tokenizers.save(tokenizer, folder)
    task = {"task": "chat", "name": "tiny", "chat_template": False, "defaults": {"max_tokens": 6}}
    (folder / "task.json").write_text(json.dumps(task))
    return folder


def copy(before: Path, noise: float) -> Path:
    """The same model, with noise in its weights."""
    model = tiny_checkpoints.tiny_llama(vocab_size=Tokenizer.from_dir(before).vocab_size, eos_token_id=0)
    for parameter in model.parameters():
        parameter.data += noise * parameter.data.std() * torch.randn_like(parameter)
    folder = before.with_name(f"after-{noise}")
    tiny_checkpoints.save(model, folder)
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).write_bytes((before / name).read_bytes())
    return folder  # without a task file: the first checkpoint's is used


def own_answers(folder: Path) -> Path:
    """Cases whose references are what the model answers."""
    tokenizer = Tokenizer.from_dir(folder)
    engine = create_engine(Settings(engine="paged", weights_dir=folder))

    async def answer(prompt: str) -> str:
        request = GenerationRequest(prompt, tuple(tokenizer.encode(prompt)), SamplingParams(max_tokens=6))
        return "".join([output.text async for output in engine.generate(request)])

    try:
        with asyncio.Runner() as runner:
            cases = [{"input": prompt, "output": runner.run(answer(prompt))} for prompt in PROMPTS]
    finally:
        engine.close()
    path = folder.parent / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_a_copy_passes_and_a_noisy_one_is_refused_with_each_limit(before: Path, tmp_path: Path) -> None:
    cases, file = own_answers(before), tmp_path / "compare.json"
    code, output = run(before, copy(before, 0.0), "--task-cases", cases, "--json", file)
    assert code == 0, output
    report = json.loads(file.read_text())
    assert (report["passed"], report["failures"]) == (True, [])
    assert report["weights"]["worst"]["error"] < 1e-6
    assert report["logits"]["kl"] < 1e-6
    assert report["scores"]["measures"]["exact"]["before"] == 1.0
    assert report["scores"]["measures"]["exact"]["points"] == 0.0
    assert {"cpu", "date", "versions", "command", "seconds", "limits"} <= report.keys()

    code, output = run(before, copy(before, 0.5), "--task-cases", cases, "--json", file)
    assert code == 1
    refused = json.loads(file.read_text())["failures"]
    assert [sentence.split(";")[0].split(" by ")[0] for sentence in refused][1:] == [
        "the logits diverge",
        "the score exact fell",
    ]
    assert all(f"REFUSED: {sentence}" in output for sentence in refused)
    assert "What may help: search on more texts of this task" in output


def test_cases_with_several_accepted_queries_are_scored_by_acceptance(tmp_path: Path) -> None:
    """The file format of examples/honeycomb/people; a random model's queries are valid, and none is accepted."""
    tokenizer = tiny_tokenizers.byte_level()
    folder = tmp_path / "before"
    tiny_checkpoints.save(
        tiny_checkpoints.tiny_llama(vocab_size=tokenizer.vocab_size, eos_token_id=0, max_position_embeddings=2048),
        folder,
    )
    tiny_tokenizers.save(tokenizer, folder)
    (folder / "task.json").write_text(
        '{"task": "honeycomb", "name": "tiny", "prompt": "columns-first", "surface": "json"}'
    )
    count, slowest = {"op": "COUNT"}, {"op": "MAX", "column": "ms"}
    line = {"nlq": "errors", "cols": ["error", "ms"], "free": ["time_range"], "category": "vague"}
    line |= {"accepted": [{"calculations": [count]}, {"calculations": [slowest]}]}
    cases, file = tmp_path / "people.jsonl", tmp_path / "compare.json"
    cases.write_text(json.dumps(line) + "\n")
    code, output = run(folder, folder, "--task-cases", cases, "--json", file)
    assert code == 0, output
    report = json.loads(file.read_text())
    assert report["scores"]["cases"] == 1
    assert report["scores"]["measures"].keys() == {"parse", "schema_valid", "column_valid", "accepted"}
    assert report["logits"]["texts"] == 1
    query = tokenizer.encode('{"calculations": [{"op": "COUNT"}]}')
    assert report["logits"]["positions"] == len(query) + 1, "the first accepted query and the end token"


def test_limits_can_be_set(before: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"text": "the slowest traces of the checkout service " * 200}) + "\n")
    after = copy(before, 0.05)
    wide = ("--limit-weights", 0.5, "--limit-logits", 50)
    assert run(before, after, "--calibration", texts, *wide)[0] == 0
    assert run(before, after, "--calibration", texts, "--limit-weights", 0.5, "--limit-logits", 1e-9)[0] == 1
    code, output = run(before, after, "--limit-weights", 0.001)
    assert code == 1
    assert "Logits and scores were not compared" in output


def test_a_weight_that_is_nan_is_refused_at_any_limit(before: Path, tmp_path: Path) -> None:
    texts, file = tmp_path / "texts.jsonl", tmp_path / "compare.json"
    texts.write_text(json.dumps({"text": "the slowest traces of the checkout service " * 200}) + "\n")
    after = copy(before, 0.0)
    tensors = load_file(after / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = math.nan
    save_file(tensors, after / "model.safetensors")
    limits = ("--limit-weights", 1e9, "--limit-logits", 1e9)
    code, output = run(before, after, "--calibration", texts, *limits, "--json", file)
    assert code == 1, output
    assert "REFUSED: the weights of model.layers.0.self_attn.q_proj differ by nan" in output
    assert "REFUSED: the logits diverge by nan nats" in output
    report = json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN is not JSON
    assert report["passed"] is False
    assert report["weights"]["worst"] == {"layer": "model.layers.0.self_attn.q_proj", "error": None}
    assert report["logits"]["kl"] is None


def test_bad_input_exits_with_2(before: Path, tmp_path: Path) -> None:
    assert run(before, tmp_path / "none")[0] == 2
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": 1}\n')
    code, output = run(before, before, "--task-cases", bad)
    assert code == 2
    assert "bad.jsonl" in output
    for ignored in (("--limit-score", 1), ("--limit-logits", 1), ("--task", bad)):
        assert run(before, before, *ignored)[0] == 2
    (before / "task.json").unlink()
    code, output = run(before, before, "--task-cases", own_answers(before))
    assert code == 2
    assert "--task" in output
