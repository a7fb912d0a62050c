"""The command, on the fake engine, and for an adapter on the paged one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.evaluate.command import app
from pipeline.train.lora_model import LoraModel
from tests.pipeline.train.training_fixtures import write_base

PROFILE = {"task": "honeycomb", "name": "toy", "prompt": "columns-first", "surface": "json"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = write_base(tmp_path / "weights")
    (folder / "task.json").write_text(json.dumps(PROFILE))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    records = [
        {"nlq": f"count {i}", "cols": ["a", "b"], "query": {"calculations": [{"op": "COUNT"}]}} for i in range(5)
    ]
    path.write_text("\n".join(json.dumps(r) for r in records))
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_an_engine_with_the_grammar_gives_only_valid_queries(data: Path, weights: Path, tmp_path: Path) -> None:
    json_file, page = tmp_path / "out" / "results.json", tmp_path / "out" / "page.html"
    code, output = run(data, "--engine", "fake", "--weights", weights, "--json", json_file, "--html", page)
    assert code == 0, output
    results = json.loads(json_file.read_text())
    assert results["n"] == 5
    assert [results[k]["value"] for k in ("parse", "schema_valid", "column_valid")] == [1, 1, 1]
    assert results["settings"] == {"engine": "fake", "weights": "weights", "task": "honeycomb", "grammar": True}
    assert results["speed"]["output_tokens"] > 0
    assert "column valid" in output
    assert page.stat().st_size > 500
    assert not list(json_file.parent.glob("*.answers.jsonl"))


def test_without_the_grammar_the_model_s_own_text_is_scored(data: Path, weights: Path) -> None:
    code, output = run(data, "--engine", "fake", "--weights", weights, "--no-grammar", "--limit", 2)
    assert code == 0, output
    assert "2 questions" in output
    assert "0.0 %" in output  # the fake echoes its prompt


def test_an_interrupted_run_continues(data: Path, weights: Path, tmp_path: Path) -> None:
    json_file = tmp_path / "results.json"
    right = '{"calculations": [{"op": "COUNT"}]}'
    kept = {"line": 3, "text": right, "raw": right, "seconds": 1.0, "output_tokens": 9, "model_passes": 9}
    (tmp_path / "results.json.answers.jsonl").write_text(json.dumps(kept) + "\n")
    code, output = run(data, "--engine", "fake", "--weights", weights, "--json", json_file, "--resume")
    assert code == 0, output
    scores = {s["line"]: s["exact"] for s in json.loads(json_file.read_text())["scores"]}
    assert len(scores) == 5
    assert scores[3]


def test_an_adapter_is_asked_as_it_is_served_on_demand(weights: Path, tmp_path: Path) -> None:
    LoraModel.load(weights, 2, 4).save(tmp_path / "adapter", "weights")
    (weights / "task.json").write_text('{"task": "chat", "name": "toy", "chat_template": false}')
    data, json_file = tmp_path / "chat.jsonl", tmp_path / "results.json"
    data.write_text('{"input": "a", "output": "b"}\n{"input": "c", "output": "d"}\n')
    asked = ("--engine", "paged", "--weights", weights, "--on-demand", tmp_path / "adapter")
    code, output = run(data, *asked, "--json", json_file)
    assert code == 0, output
    results = json.loads(json_file.read_text())
    assert (results["n"], results["settings"]["task"], results["settings"]["adapter"]) == (2, "chat", "adapter")


def test_two_result_files_are_compared(data: Path, weights: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(data, "--engine", "fake", "--weights", weights, "--json", tmp_path / f"{name}.json")
    code, output = run("--compare", tmp_path / "a.json", tmp_path / "b.json")
    assert code == 0, output
    assert "+0.0 to +0.0" in output


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("none.jsonl",), "make_data"),
        ((), "--compare"),
        (("DATA", "--resume"), "--json"),
        (("DATA", "--engine", "nope"), "paged"),
    ],
)
def test_mistakes_are_reported_with_their_remedy(
    data: Path, weights: Path, arguments: tuple[str, ...], remedy: str
) -> None:
    given = [data if a == "DATA" else a for a in arguments]
    code, output = run(*given, "--weights", weights)
    assert code == 1
    assert remedy in output
    assert "Traceback" not in output
