"""scripts/dev/bench on other tasks than Honeycomb: requests from a file, any constraint, and peers without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from lab.bench.asker import Asker, query_schema
from lab.bench.command import app
from lab.bench.peers import Form, NoSuchFormError, WeightForms
from lab.bench.protocol import BATCH, Ask, Batch, Reply
from lab.bench.questions import RequestFile
from pipeline.paths import ROOT
from serving.constraints import Constraint, JsonSchemaConstraint, LarkConstraint
from tests.lab.bench.bench_fixtures import write_weights

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a schema task."""
    folder = write_weights(tmp_path_factory.mktemp("weights"))
    (folder / "task.json").write_text(
        json.dumps({"task": "schema", "name": "toy", "template": "Text: {text}\nJSON: ", "schema": SCHEMA})
    )
    return folder


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def write_requests(path: Path, inputs: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"input": given, "output": "left alone"}) + "\n" for given in inputs))
    return path


def test_a_schema_task_is_measured_on_requests_of_a_file(weights: Path, tmp_path: Path) -> None:
    requests = write_requests(
        tmp_path / "requests.jsonl", ["We met in Rome.", *({"text": f"No. {i}"} for i in range(40))]
    )
    result_file = tmp_path / "result.json"
    options = ["--engines", "fake", "--quick", "--weights", weights, "--requests", requests, "--json", result_file]
    code, output = run(*options, "--workloads", "one-new,one-seen,load-8", "--evaluation", requests, "--limit", 5)
    assert code == 0, output
    result = json.loads(result_file.read_text())
    assert result["task"] == "schema" and "questions_repeated" not in result
    assert result["answers"]["fake"]["valid"] == result["answers"]["fake"]["answers"] == 3 + 3 + 8
    evaluated = next(run for run in result["runs"] if run["workload"] == "evaluation")
    assert len(evaluated["replies"]) == 5
    assert set(json.loads(evaluated["replies"][0]["text"])) == {"city", "n"}


def test_a_chat_task_is_measured_without_a_grammar_where_a_request_has_no_schema(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights")
    (weights / "task.json").write_text(json.dumps({"task": "chat", "name": "toy", "chat_template": False}))
    requests = write_requests(tmp_path / "requests.jsonl", ["hello", {"prompt": "a", "json_schema": SCHEMA}, *"bcdef"])
    options = ["--engines", "fake", "--quick", "--weights", weights, "--requests", requests]
    code, output = run(*options, "--workloads", "one-new", "--json", tmp_path / "result.json")
    assert code == 0, output
    result = json.loads((tmp_path / "result.json").read_text())
    free, held, _ = (reply["text"] for reply in result["runs"][0]["replies"])
    assert set(json.loads(held)) == {"city", "n"}
    assert not free.startswith("{")


def test_too_few_requests_are_measured_with_a_warning(weights: Path, tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", ["one", "two", "three"])
    options = [
        "--engines",
        "fake",
        "--quick",
        "--weights",
        weights,
        "--requests",
        requests,
        "--workloads",
        "one-new,load-8",
    ]
    code, output = run(*options, "--json", tmp_path / "result.json")
    assert code == 0, output
    assert "only 2 different requests" in output
    assert json.loads((tmp_path / "result.json").read_text())["questions_repeated"] is True


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "the weights are of a schema task, for which no requests come with the benchmark; give --requests FILE"),
        ('{"input": "one"}\n', "1 requests; give at least two"),
        ('{"input": "one"}\n{"text": "two"}\n', ":2: a line is"),
        ('{"input": "one"}\n{"input": ["two"]}\n', ':2: a line is {"input": {the inputs of predict}}'),
        ('{"input": "one"}\n{"input": {"text": " "}}\n', "request 2: text: is blank"),
    ],
)
def test_invalid_requests_are_refused_before_anything_starts(
    weights: Path, tmp_path: Path, lines: str | None, message: str
) -> None:
    path = tmp_path / "requests.jsonl"
    if lines is not None:
        path.write_text(lines)
    code, output = run("--engines", "fake", "--weights", weights, *(["--requests", path] if lines else []))
    assert code == 1
    assert message in output


def test_every_draw_has_different_questions_and_is_reproducible() -> None:
    source = RequestFile([{"text": str(i)} for i in range(10)])
    first, second = source.draw(4, "one-new 0", 0), source.draw(6, "load-8 0", 0)
    assert len({str(q["text"]) for q in [*first, *second]}) == 10
    assert not source.is_repeated
    assert source.draw(4, "one-new 0", 0) == first
    assert source.draw(3, "one-new 1", 1) == first[:3]
    assert source.is_repeated


@pytest.mark.parametrize(
    "constraint",
    [LarkConstraint('start: "a"'), JsonSchemaConstraint("{}", item_separator=",", key_separator=":")],
)
def test_a_constraint_is_passed_unchanged(constraint: Constraint) -> None:
    batch = Batch((Ask("0", (1,), 5, constraint=constraint),), concurrency=1)
    assert BATCH.validate_json(BATCH.dump_json(batch)) == batch


def test_answers_are_compared_without_white_space_and_invalid_ones_are_never_equal(weights: Path) -> None:
    asker, question = Asker(weights), {"text": "x"}

    def meaning(text: str, **more: Any) -> str | None:
        return asker.meaning(question, Reply("0", 0.1, 0.2, text=text, finish="stop", **more))

    assert (
        meaning('{"city": "Rome", "n": 1}') == meaning('{"n":1,"city":"Rome"}') != meaning('{"city": "Rome", "n": 2}')
    )
    assert meaning('{"city": "Ro') is None
    assert meaning("", error="EngineDeadError: gone") is None


def test_queries_of_people_match_the_schema_that_llama_gets() -> None:
    lines = (ROOT / "examples/honeycomb/people/dev.jsonl").read_text("utf-8").splitlines()
    for case in map(json.loads, lines):
        query = jsonschema.Draft202012Validator(json.loads(json.dumps(query_schema(case["cols"]))))
        for accepted in case["accepted"]:
            query.validate(accepted)
    query.check_schema(query.schema)
    with pytest.raises(jsonschema.ValidationError):
        query.validate({"breakdowns": ["not a column"]})


def test_peers_that_need_the_default_weights_are_refused_for_others(weights: Path, tmp_path: Path) -> None:
    """Otherwise a peer would run another model."""
    forms = WeightForms(weights, unquantized=None, cache=tmp_path)
    with pytest.raises(NoSuchFormError, match="--unquantized"):
        forms.path(Form.UNQUANTIZED)
    assert WeightForms(weights, unquantized=tmp_path, cache=tmp_path).path(Form.UNQUANTIZED) == tmp_path


def test_unquantized_weights_come_with_the_draft_model_that_is_served(tmp_path):
    served, plain = tmp_path / "served", tmp_path / "plain"
    for file in (served / "draft.model", served / "config.json", plain / "config.json"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(file.parent.name)
    for _ in range(2):  # the second time over the links of the first
        folder = WeightForms(served, unquantized=plain, cache=tmp_path / "cache").path(Form.UNQUANTIZED)
        assert {file.name: file.read_text() for file in folder.iterdir()} == {
            "draft.model": "served",
            "config.json": "plain",
        }


def test_served_weights_that_are_not_quantized_are_called_so(tmp_path):
    forms = WeightForms(tmp_path, unquantized=tmp_path, cache=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert forms.label(Form.QUANTIZED) == "unquantized"
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    assert forms.label(Form.QUANTIZED) == "AWQ int4"
