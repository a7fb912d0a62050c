"""scripts/batch on s3:// and gs://, against servers that speak these protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.batch.answer_journal import journal_of
from pipeline.batch.run_files import RunFiles
from pipeline.batch.table import Table
from tests.cog.tiny_weights import make_tiny_weights
from tests.pipeline.batch.batch_command import Command
from tests.pipeline.batch.storage_servers import StorageServer, storage_server

pytestmark = [pytest.mark.index, pytest.mark.timeout(600)]  # the first use installs the servers


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageServer]:
    with storage_server(request.param, tmp_path_factory.mktemp("server") / "log") as started:
        yield started


@pytest.fixture
def command(tmp_path: Path, server: StorageServer) -> Command:
    (tmp_path / "tiny").mkdir()
    return Command(tmp_path, make_tiny_weights(tmp_path / "tiny") | {"ENGINE": "fake"} | server.settings)


def rows(*numbers: int) -> bytes:
    return b"".join(json.dumps({"id": i, "nlq": f"count {i}", "cols": "a, b"}).encode() + b"\n" for i in numbers)


def test_a_folder_is_read_and_the_output_is_written(command: Command, server: StorageServer) -> None:
    server.put("in/b.jsonl", rows(2, 3))
    server.put("in/a.jsonl", rows(0, 1))
    server.put("in/readme.txt", b"not read")
    out = f"{server.place}/new/out.parquet"
    code, output = command.run(f"{server.place}/in/", "--out", out)
    assert code == 0, output
    assert f"{out}: 4 of 4 rows" in output
    (command.folder / "out.parquet").write_bytes(server.get("new/out.parquet"))
    found = [row.values for row in Table(command.folder / "out.parquet").rows()]
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert all(row["answer"] for row in found)
    assert not RunFiles("in.jsonl", out).out.parent.exists(), "no copy is left"
    code, output = command.run(f"{server.place}/in/", "--out", out)
    assert (code, f"{out} exists; delete it" in output) == (1, True)


def test_one_side_may_be_local(command: Command, server: StorageServer) -> None:
    server.put("one.csv", b"nlq,cols\ncount,a\n")
    code, output = command.run(f"{server.place}/one.csv", "--out", "out.jsonl")
    assert code == 0, output
    assert [row.values["nlq"] for row in Table(command.folder / "out.jsonl").rows()] == ["count"]
    code, output = command.run("out.jsonl", "--out", f"{server.place}/again.csv", "--answer", "second")
    assert code == 0, output
    assert server.get("again.csv").startswith(b"nlq,cols,answer,")


def test_a_run_that_was_killed_continues(command: Command, server: StorageServer) -> None:
    server.put("many.jsonl", rows(*range(600)))
    arguments = (f"{server.place}/many.jsonl", "--out", f"{server.place}/killed.jsonl")
    journal = journal_of(RunFiles(arguments[0], arguments[2]).out)
    process = command.start(*arguments)
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < 1_000):
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    before = journal.read_bytes()
    code, output = command.run(*arguments, "--budget-rows", "1")
    assert code == 0, output
    assert 0 < server.get("killed.jsonl").count(b"\n") < 600, "the output has the rows so far"
    assert journal.read_bytes().startswith(before[: before.rindex(b"\n") + 1]), "no answer is lost"
    code, output = command.run(*arguments)
    assert code == 0, output
    assert [json.loads(line)["id"] for line in server.get("killed.jsonl").splitlines()] == list(range(600))


def test_an_output_that_could_not_be_written_is_written_by_the_same_command(
    command: Command, server: StorageServer
) -> None:
    (command.folder / "in.jsonl").write_bytes(rows(*range(600)))
    bucket = "short-lived"
    server.make_bucket(bucket)
    out = f"{server.scheme}://{bucket}/out.jsonl"
    journal = journal_of(RunFiles("in.jsonl", out).out)
    process = command.start("in.jsonl", "--out", out)
    while process.poll() is None and not journal.exists():
        time.sleep(0.01)
    server.remove_bucket(bucket)
    output, _ = process.communicate()
    assert process.returncode == 1, output
    assert "there is no such bucket" in output
    assert "All answers are kept" in output
    answers = journal.read_bytes()
    server.make_bucket(bucket)
    code, output = command.run("in.jsonl", "--out", out, "--budget-rows", "1")
    assert code == 0, output
    assert answers.count(b"\n") == 601, "its first line names the run"
    assert len(server.get("out.jsonl", bucket).splitlines()) == 600


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("{place}/none.jsonl", "out.jsonl", "none.jsonl does not exist; give an object"),
        ("{scheme}://no-bucket-here/in.jsonl", "out.jsonl", "no such bucket"),
        ("in.jsonl", "{scheme}://no-bucket-here/out.jsonl", "no such bucket"),
        ("in.jsonl", "{place}/out.xlsx", "unknown ending"),
        ("https://example.com/in.jsonl", "out.jsonl", "s3://BUCKET/KEY or gs://BUCKET/KEY"),
    ],
)
def test_mistakes_are_reported_with_their_remedy(
    command: Command, server: StorageServer, data: str, out: str, message: str
) -> None:
    command.write("in.jsonl", {"nlq": "count", "cols": "a"})
    names = {"place": server.place, "scheme": server.scheme}
    code, output = command.run(data.format(**names), "--out", out.format(**names))
    assert (code, "Traceback" in output) == (1, False)
    assert message in output


def test_the_error_of_an_account_that_may_not_read_says_where_credentials_come_from(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    with storage_server("s3", tmp_path / "log", refuses=True) as server:
        settings = make_tiny_weights(tmp_path / "tiny") | {"ENGINE": "fake"} | server.settings
        code, output = Command(tmp_path, settings).run(f"{server.place}/in.jsonl", "--out", "out.jsonl")
    assert code == 1
    assert "ACCESS_DENIED" in output
    assert "AWS_ACCESS_KEY_ID" in output
