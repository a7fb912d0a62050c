"""scripts/batch on a real Ray: its answers are those of one engine in one process, whatever is killed."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import psutil
import pytest

from pipeline.environment.enter import installed_environment
from tests.cog.tiny_weights import make_tiny_weights
from tests.pipeline.batch.batch_command import ROOT, Command

pytestmark = [pytest.mark.index, pytest.mark.timeout(900)]  # Ray's processes take long to start on busy cores
ACTOR = "ray::EngineActor"
READY = "ready:"
HEAD = """
import sys, ray
from pipeline.batch.ray_cluster import connect
connect(None)
print("ready:", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """Ray's own: a token by which its processes know each other, and a folder, whose name must be short."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": folder}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Command:
    """In a folder with 400 rows, of which 8 are refused, and the answers of a run without Ray."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "tiny").mkdir()
    command = Command(folder, make_tiny_weights(folder / "tiny") | settings | {"ENGINE": "fake"})
    cols = [f"a{i % 3}, b" if i % 50 else "['a" for i in range(400)]
    command.write("in.jsonl", *({"id": i, "nlq": f"count {i % 7}", "cols": cols[i]} for i in range(400)))
    code, output = command.run("in.jsonl", "--out", "expected.jsonl", "--local")
    assert (code, "400 of 400 rows, 8 failed now" in output) == (0, True), output
    return command


@pytest.fixture(scope="module")
def cluster(settings: dict[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a Ray cluster, and the process that all its processes are below."""
    python = installed_environment("ray") / "bin" / "python"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([python, "-c", HEAD], cwd=ROOT, env={**os.environ, **settings}, text=True, **pipes) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        said = ""
        while (line := head.stdout.readline()) and not line.startswith(READY):
            said += line
        if not line:
            fail(said)
        yield line.removeprefix(READY).strip(), psutil.Process(head.pid)
        head.stdin.close()


def test_the_actor_is_killed_twice(command: Command, cluster: tuple[str, psutil.Process]) -> None:
    address, head = cluster
    process = command.start("in.jsonl", "--out", "killed.jsonl", "--address", address, "--engines", "1")
    for lines in (20, 60):
        wait_for_answers(command.folder / "killed.jsonl", process, lines)
        actors = actors_of(head)
        assert actors
        for actor in actors:
            actor.kill()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "400 of 400 rows, 8 failed now" in output
    assert same(command, "killed.jsonl")


def test_the_driver_is_killed_and_another_cluster_continues(
    command: Command, cluster: tuple[str, psutil.Process]
) -> None:
    process = command.start("in.jsonl", "--out", "resumed.jsonl", "--ray", "--engines", "2")
    wait_for_answers(command.folder / "resumed.jsonl", process, lines=20)
    driver = psutil.Process(process.pid)
    below, actors = driver.children(recursive=True), actors_of(driver)
    assert actors
    process.kill()
    assert psutil.wait_procs(actors, timeout=300)[1] == [], "engines end with their driver"
    for helper in below:  # some of Ray's own processes notice it after a minute only
        with suppress(psutil.NoSuchProcess):
            helper.kill()
    process.communicate()
    code, output = command.run("in.jsonl", "--out", "resumed.jsonl", "--address", cluster[0])
    if code:
        fail(output)
    assert same(command, "resumed.jsonl")
    assert not (command.folder / "resumed.jsonl.progress.jsonl").exists()


def test_mistakes_are_reported_with_their_remedy(command: Command) -> None:
    for arguments, message in [
        (("--ray", "--local"), "leave out --ray"),
        (("--address", "ray://127.0.0.1:10001"), "give HOST:PORT"),
    ]:
        code, output = command.run("in.jsonl", "--out", "out.jsonl", *arguments)
        assert (code, "Traceback" in output) == (1, False)
        assert message in output


def wait_for_answers(out: Path, process: subprocess.Popen[str], lines: int) -> None:
    """Until the file of answers has so many lines."""
    journal = out.with_name(out.name + ".progress.jsonl")
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < lines):
        time.sleep(0.01)
    if process.poll() is not None:
        fail(process.communicate()[0])


def fail(output: str) -> NoReturn:
    """Fail with what a run said; skip if Ray did not start on a machine that has far more to do than it can."""
    is_ray = any(text in output for text in ("Ray does not start", "Failed to connect to Ray"))
    if is_ray and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"the machine is too busy for Ray, which gives its processes 15 s: {output[-300:]}")
    pytest.fail(output)


def actors_of(head: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in head.children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(ACTOR):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def same(command: Command, name: str) -> bool:
    """Whether the output is that of the run without Ray, in the same order."""
    return (command.folder / name).read_bytes() == (command.folder / "expected.jsonl").read_bytes()
