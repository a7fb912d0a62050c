"""Evaluating a schema task: cases, scores, and the whole command on the fake engine, which repeats its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.evaluate.command import app
from pipeline.evaluate.results import summarize
from tasks.bounds import narrowed
from tasks.confidence import Calibration
from tasks.errors import CaseFileError
from tasks.evaluation.cases import Case, Score
from tasks.evaluation.json_answers import JsonEvaluation
from tasks.task import create_evaluation
from tests.tasks.schema.task_files import write_task

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "counts": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
}
RIGHT = {"name": "ink", "counts": [1, 2]}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A checkpoint for the fake engine, which repeats its input."""
    return write_task(tmp_path / "weights", SCHEMA, template="{text}")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*records: Any) -> Path:
        path = tmp_path / "cases.jsonl"
        path.write_text("\n".join(json.dumps(record) for record in records))
        return path

    return write


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.output


def case(reference: Any = RIGHT, schema: Any = SCHEMA, line: int = 1) -> Case:
    return Case(line, {"text": "some <b>text</b>"}, reference, "small", schema)


def score(text: str, *, error: str | None = None, **options: Any) -> Score:
    return JsonEvaluation("schema", "text", lambda inputs: None).score(case(**options), text, error)


def levels(s: Score) -> tuple[bool, ...]:
    return tuple(s.measures.values())


def test_the_command_measures_a_schema_task(weights: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    data = write(
        {"input": json.dumps(RIGHT), "output": RIGHT, "category": "right"},
        {"input": {"text": '{"name": "ink", "counts": [1, 3]}'}, "output": json.dumps(RIGHT), "category": "wrong"},
        {"input": "no JSON", "output": RIGHT, "category": "wrong"},
        {"input": "x", "output": {"name": 5}},
    )
    json_file, page = tmp_path / "results.json", tmp_path / "page.html"
    code, output = run(data, "--engine", "fake", "--weights", weights, "--json", json_file, "--html", page)
    assert code == 0, output
    assert "left out: cases.jsonl:4" in output
    results = json.loads(json_file.read_text())
    assert (results["n"], results["refused_references"]) == (3, 1)
    assert results["settings"] == {"engine": "fake", "weights": "weights", "task": "schema", "grammar": True}
    assert results["valid"]["value"] == 1
    assert results["exact"]["value"] == pytest.approx(1 / 3)
    assert [s["exact"] for s in results["scores"]] == [True, False, False]
    assert results["recall"]["value"] == pytest.approx(5 / 9)
    assert set(results["f1"]) == {"all", "name", "counts[]"}
    assert results["categories"]["wrong"]["n"] == 2
    assert [f["line"] for f in results["failures"]] == [2, 3]
    assert "F1 counts[]" in output and "valid" in output
    assert "<ins>3</ins>" in page.read_text()
    right, wrong, _ = results["confidence"]
    assert [is_right for _, is_right in right] == [True] * 5
    assert [is_right for _, is_right in wrong] == [True] * 4 + [False]
    assert all(0 < probability <= 1 for probability, _ in right)


def test_the_command_keeps_how_often_fields_were_right_beside_the_weights(
    weights: Path, write: Callable[..., Path]
) -> None:
    data = write(*({"input": json.dumps(RIGHT | {"counts": [n, n]}), "output": RIGHT} for n in range(50)))
    code, output = run(data, "--engine", "fake", "--weights", weights, "--confidence")
    assert code == 0, output
    assert "From 50 answers that were not learned, with 250 fields" in output
    found = Calibration.beside(weights)
    assert (found.answers, found.fields) == (50, 250)
    assert weights.with_name("weights.confidence.png").read_bytes().startswith(b"\x89PNG")
    few = write({"input": json.dumps(RIGHT), "output": RIGHT})
    code, output = run(few, "--engine", "fake", "--weights", weights, "--confidence")
    assert code == 0 and "Not measured: the probabilities of fields are known for 1 answers" in output
    assert Calibration.beside(weights) == Calibration(), "those of other answers are gone"


def test_confidence_is_of_what_a_server_answers(weights: Path, write: Callable[..., Path]) -> None:
    data = write({"input": "x", "output": RIGHT})
    code, output = run(data, "--engine", "fake", "--weights", weights, "--confidence", "--no-grammar")
    assert code == 1 and "--confidence needs the grammar" in output


def test_without_the_grammar_the_model_s_own_text_is_scored(weights: Path, write: Callable[..., Path]) -> None:
    data = write({"input": json.dumps(RIGHT), "output": RIGHT}, {"input": "no JSON", "output": RIGHT})
    code, output = run(data, "--engine", "fake", "--weights", weights, "--no-grammar")
    assert code == 0, output
    assert output.count("50.0 %") >= 2  # valid and exact


def test_another_task_file_can_be_used(weights: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    (weights / "task.json").write_text("broken")
    other = write_task(tmp_path / "other", None, schema_file="s.json", template="{text}")
    (other / "s.json").write_text(json.dumps(SCHEMA))
    data, json_file = write({"input": json.dumps(RIGHT), "output": RIGHT}), tmp_path / "results.json"
    code, output = run(
        data, "--engine", "fake", "--weights", weights, "--task", other / "task.json", "--json", json_file
    )
    assert code == 0, output
    assert json.loads(json_file.read_text())["exact"]["value"] == 1


def test_two_runs_are_compared(weights: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    data = write({"input": "no JSON", "output": RIGHT}, {"input": json.dumps(RIGHT), "output": RIGHT})
    for name, options in (("a", ["--no-grammar"]), ("b", [])):
        run(data, "--engine", "fake", "--weights", weights, "--json", tmp_path / f"{name}.json", *options)
    code, output = run("--compare", tmp_path / "a.json", tmp_path / "b.json")
    assert code == 0, output
    assert "+50.0" in output and "valid" in output


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([{"input": "x"}], "a line is"),
        ([{"input": "x", "output": RIGHT, "note": 1}], "unknown keys: note"),
        ([{"input": 5, "output": RIGHT}], "a line is"),
        ([{"input": "x", "output": {"name": 5}}], "no usable line"),
    ],
)
def test_errors_of_invalid_case_files_explain_them(
    weights: Path, write: Callable[..., Path], records: list[Any], problem: str
) -> None:
    code, output = run(write(*records), "--engine", "fake", "--weights", weights)
    assert code == 1
    assert problem in output and "Traceback" not in output


def test_an_exact_answer_must_be_valid() -> None:
    assert levels(score('{"counts": [1, 2.0], "name": "ink"}')) == (True, True)
    assert levels(score('{"name": "x"}')) == (True, False)
    wrong = score('{"counts": [1, 2]}')
    assert (*levels(wrong), wrong.counts["counts[]"]) == (False, False, (2, 2, 2))
    assert "'name' is a required property" in str(wrong.problem)
    cut = score('{"name": "in', error="OutputError: cut")
    assert (cut.measures["valid"], cut.problem, cut.counts["name"]) == (False, "OutputError: cut", (0, 0, 1))


def test_text_is_compared_as_text() -> None:
    same = score(" Paris\n", reference="Paris", schema=None)
    assert (*levels(same), same.counts) == (True, True, {})
    assert not score("paris", reference="Paris", schema=None).measures["exact"]
    assert not score("Paris", reference="Paris", schema=None, error="InputError: x").measures["valid"]
    results = summarize([same], {})
    assert "precision" not in results and results["f1"] == {}


def test_measures_are_over_all_fields() -> None:
    scores = [score(json.dumps(RIGHT), line=1), score('{"name": "ink", "counts": [1, 9, 9, 9]}', line=2)]
    results = summarize(scores, {"data": {}})
    assert results["precision"]["value"] == pytest.approx(5 / 8)
    assert results["recall"]["value"] == pytest.approx(5 / 6)
    assert results["f1"]["all"]["value"] == pytest.approx(10 / 14)
    assert results["f1"]["name"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    low, high = (results["precision"][end] for end in ("low", "high"))
    assert low == pytest.approx(2 / 5) and high == 1.0
    assert json.loads(json.dumps(results)) == results


def test_the_command_measures_a_chat_task(weights: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    """A model without a chat template, evaluated greedily: at its default temperature the fake engine shuffles text."""
    (weights / "task.json").write_text('{"task": "chat", "name": "x", "chat_template": false}')
    data = write(
        {"input": "The capital of France is Paris", "output": "The capital of France is Paris", "category": "text"},
        {"input": "Berlin", "output": "Rome", "category": "text"},
        {"input": {"prompt": json.dumps(RIGHT), "json_schema": SCHEMA}, "output": RIGHT, "category": "JSON"},
        {"input": {"prompt": "no JSON", "json_schema": SCHEMA}, "output": RIGHT, "category": "JSON"},
        {"input": {"prompt": "x", "loud": True}, "output": "x", "category": "refused"},
    )
    json_file, page = tmp_path / "results.json", tmp_path / "page.html"
    code, output = run(data, "--engine", "fake", "--weights", weights, "--json", json_file, "--html", page)
    assert code == 0, output
    results = json.loads(json_file.read_text())
    assert results["settings"]["task"] == "chat"
    assert [(s["valid"], s["exact"]) for s in results["scores"]] == [
        (True, True),
        (True, False),
        (True, True),
        (True, False),
        (False, False),
    ]
    assert results["recall"]["value"] == pytest.approx(3 / 6)
    assert "loud" in results["failures"][2]["problem"]


def test_chat_cases_have_the_schema_of_their_request(tmp_path: Path, write: Callable[..., Path]) -> None:
    (tmp_path / "task.json").write_text('{"task": "chat", "name": "x"}')
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    data = write(
        {"input": "The capital of France?", "output": "Paris"},
        {"input": {"prompt": "x", "json_schema": SCHEMA}, "output": RIGHT},
        {"input": {"prompt": "x", "json_schema": json.dumps(SCHEMA)}, "output": RIGHT},
        {"input": {"prompt": "x", "json_schema": wrapped}, "output": json.dumps(RIGHT)},
        {"input": {"messages": [{"role": "user", "content": "x"}], "json_schema": None}, "output": "text"},
    )
    cases, refused = create_evaluation(tmp_path).read_cases(data)
    assert refused == []
    assert cases[0].inputs == {"prompt": "The capital of France?"}
    assert [c.schema for c in cases] == [None, *[narrowed(SCHEMA)] * 3, None]
    assert [c.reference for c in cases] == ["Paris", RIGHT, RIGHT, RIGHT, "text"]
    with pytest.raises(CaseFileError, match="answers with text"):
        create_evaluation(tmp_path).read_cases(write({"input": "x", "output": 5}))
