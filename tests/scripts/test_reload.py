"""A running scripts/serve loads another version, and no request is lost or waits for the loading."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from lab.endurance.own_weights import lock_text
from pipeline.package.reload import reload_server, running_servers
from tests.free_ports import free_port
from tests.serve_command import Serve

pytestmark = pytest.mark.server
INPUT = {"nlq": "how many?", "cols": "['a', 'b']"}
MODEL = "/v1/models/local/tiny"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """The command, in front of a small model."""
    database = tmp_path / "gateway" / "predictions.sqlite"
    monkeypatch.setenv("GATEWAY_DATABASE", str(database))
    options = ("--engine", "fake", "--port", str(free_port()), "--gateway-port", str(free_port()))
    one = Serve(tmp_path, *options)
    one.wait_for("/health-check")
    yield one
    one.end()
    assert list(database.parent.glob("serve-*")) == []


def addresses(serve: Serve) -> tuple[str, str]:
    """Of the gateway, and of what has Cog's protocol."""
    words = serve.process.args
    return tuple(f"http://127.0.0.1:{words[words.index(name) + 1]}" for name in ("--gateway-port", "--port"))


def cogs(serve: Serve) -> list[int]:
    children = psutil.Process(serve.process.pid).children()
    return [child.pid for child in children if "cog.server.http" in child.cmdline()]


def change(folder: Path) -> None:
    """Other weights in the same place, as if another version were promoted."""
    (folder / "tiny" / "note.txt").write_text("another version")
    (folder / "weights.lock").write_text(lock_text(folder / "tiny"))


class Load:
    """Clients that send one request after another, from several threads, until they are told to stop."""

    def __init__(self, *sends: Callable[[httpx.Client], str]) -> None:
        self.seen: list[Counter[str]] = [Counter() for _ in sends]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=pair) for pair in zip(sends, self.seen, strict=True)]
        for thread in self._threads:
            thread.start()

    def _run(self, send: Callable[[httpx.Client], str], seen: Counter[str]) -> None:
        with httpx.Client(timeout=120) as client:
            while not self._ended.is_set():
                try:
                    seen[send(client)] += 1
                except httpx.HTTPError as error:
                    seen[repr(error)] += 1

    def end(self) -> list[Counter[str]]:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return self.seen


def test_every_request_succeeds_while_another_version_takes_over(serve: Serve, tmp_path: Path):
    gateway, cog = addresses(serve)

    def waits(client: httpx.Client) -> str:
        answer = client.post(f"{gateway}{MODEL}/predictions", json={"input": INPUT}, headers={"Prefer": "wait"})
        return answer.json().get("status", answer.text)

    def streams(client: httpx.Client) -> str:
        created = client.post(f"{gateway}{MODEL}/predictions", json={"input": INPUT})
        last = client.get(created.json()["urls"]["stream"]).text.strip().rpartition("\n\n")[2]
        return "succeeded" if last.startswith("event: done") and last.endswith("data: {}") else last

    def asks_cog(client: httpx.Client) -> str:
        return client.post(f"{cog}/predictions", json={"input": INPUT}).json().get("status", "none")

    before = httpx.get(f"{gateway}{MODEL}").json()["latest_version"]["id"]
    (old,) = cogs(serve)
    load = Load(waits, streams, asks_cog)
    change(tmp_path)
    said: list[str] = []
    (place,) = running_servers()
    assert reload_server(place, said.append), said
    at_switch = [counter.total() for counter in load.seen]
    seen = load.end()
    assert [set(counter) for counter in seen] == [{"succeeded"}] * 3, seen
    assert all(at_switch)
    assert "the version before finishes its predictions" in said[-1]
    (new,) = cogs(serve)
    assert new != old
    after = httpx.get(f"{gateway}{MODEL}").json()["latest_version"]["id"]
    last = httpx.post(f"{gateway}{MODEL}/predictions", json={"input": INPUT}, headers={"Prefer": "wait"}).json()
    assert last["version"] == after != before


def test_a_version_that_does_not_load_changes_nothing(serve: Serve, tmp_path: Path):
    gateway, _ = addresses(serve)
    before = cogs(serve)
    (tmp_path / "tiny" / "task.json").write_text("{}")
    said: list[str] = []
    (place,) = running_servers()
    assert not reload_server(place, said.append)
    assert "The version before goes on" in said[-1]
    assert cogs(serve) == before
    answer = httpx.post(f"{gateway}{MODEL}/predictions", json={"input": INPUT}, headers={"Prefer": "wait"}, timeout=60)
    assert answer.json()["status"] == "succeeded"


def test_a_server_that_was_killed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GATEWAY_DATABASE", str(tmp_path / "predictions.sqlite"))
    (tmp_path / "serve-1").write_text(str(tmp_path / "nothing"))
    assert running_servers() == []
    assert not (tmp_path / "serve-1").exists()
