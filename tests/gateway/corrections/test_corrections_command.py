"""scripts/corrections: adds, lists, exchanges and removes what the gateway keeps, also while that runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.corrections.command import app
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import create, open_app

INPUT = '{"text": "a\\u00e9"}'
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GATEWAY_DATABASE", str(tmp_path / "gateway.sqlite"))
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_added_is_listed_exported_and_removed(run: Run):
    added = run("add", "--input", INPUT, "--output", '{"n": 1}', "--note", "[bold]why")
    report = run("add", "--input", INPUT, "--kind", "report")
    run("add", "--input", INPUT, "--output", "not yet", "--state", "proposed")
    assert added.exit_code == report.exit_code == 0
    line = {"input": {"text": "aé"}, "output": '{"n": 1}', "given": None, "note": "[bold]why"}
    assert lines(run("export")) == [line | {"kind": "correction", "state": "accepted"}]
    assert [one["kind"] for one in lines(run("export", "--kind", "report"))] == ["report"]
    assert [one["output"] for one in lines(run("export", "--state", "proposed"))] == ["not yet"]
    shown = run("list", "--state", "accepted").stdout
    assert (
        added.stdout.strip() in shown
        and report.stdout.strip() in shown
        and "[bold]why" in shown
        and "not yet" not in shown
    )
    assert run("remove", added.stdout.strip()).exit_code == 0
    again = run("remove", added.stdout.strip())
    assert (again.exit_code, "there is no correction" in again.stderr) == (1, True)


def test_what_was_proposed_is_accepted_all_or_none(run: Run):
    ids = [run("add", "--input", INPUT, "--output", n, "--state", "proposed").stdout.strip() for n in "12"]
    wrong = run("accept", ids[0], "unknown")
    assert wrong.exit_code == 1 and "there is no correction unknown" in wrong.stderr
    assert run("export").stdout == ""
    assert run("accept", *ids).exit_code == 0
    assert [one["output"] for one in lines(run("export"))] == ["1", "2"]


def test_a_file_is_taken_whole_and_once(run: Run, tmp_path: Path):
    path = tmp_path / "in.jsonl"
    many = [{"input": {"text": str(number)}, "output": {"n": number}} for number in range(3000)]
    path.write_text("\n".join(map(json.dumps, [*many, many[0]])) + "\n\n")
    assert "3000 added, 1 were there already" in run("import", path, "--state", "accepted").stderr
    assert "0 added, 3001 were there already" in run("import", path).stderr
    exported = run("export").stdout
    assert [one["output"] for one in lines(run("export"))][:2] == ['{"n": 0}', '{"n": 1}']
    path.write_text(exported)
    assert "0 added" in run("import", path).stderr, "what is exported can be imported"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: Invalid JSON"),
        ('{"output": "x"}', "line 2: input: Field required"),
        ('{"input": "x", "output": "x"}', "line 2: input: Input should be"),
        ('{"input": {}, "output": "x", "kind": "praise"}', "line 2: kind: Input should be"),
        ('{"input": {}, "outptu": "x"}', "line 2: outptu: Extra inputs"),
        ('{"input": {}}', "line 2: output: a correction has one"),
        ('{"input": {}, "output": "x", "kind": "report"}', "line 2: output: a report has no answer"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_taken(run: Run, tmp_path: Path, line: str, message: str):
    path = tmp_path / "in.jsonl"
    path.write_text('{"input": {"text": "a"}, "output": "b"}\n' + line)
    refused = run("import", path)
    assert (refused.exit_code, message in refused.stderr) == (1, True), refused.stderr
    assert run("export", "--state", "proposed").stdout == ""


def test_inputs_that_are_no_object_and_files_that_are_not_there_are_refused(run: Run, tmp_path: Path):
    for arguments, message in (
        (("add", "--input", "[1]", "--output", "x"), "is not an object"),
        (("add", "--input", "{", "--output", "x"), "is not JSON"),
        (("add", "--input", "{}"), "output: a correction has one"),
        (("import", tmp_path / "none.jsonl"), "cannot be read: No such file"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, message in refused.stderr) == (1, True), refused.stderr


async def test_it_works_beside_a_running_gateway(run: Run, tmp_path: Path):
    async with FakeCog() as cog, open_app(tmp_path, cog) as client:
        prediction = await create(client)
        body = {"prediction": prediction["id"], "wanted": "right", "state": "accepted"}
        proposed = (await client.post("/v1/corrections", json=body)).json()
        (exported,) = lines(run("export"))
        assert (exported["input"], exported["output"]) == (prediction["input"], "right")
        added = run("add", "--input", INPUT, "--output", "x").stdout.strip()
        seen = (await client.get("/v1/corrections")).json()["results"]
        assert [one["id"] for one in seen] == [added, proposed["id"]]
        run("remove", proposed["id"])
        assert (await client.get(f"/v1/corrections/{proposed['id']}")).status_code == 404
