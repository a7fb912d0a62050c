"""Other servers take over while predictions run: by a file that is read again, or because one ends in order."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from gateway.settings import SettingsError
from lab.endurance.cog_process import CogServer
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import create, open_app
from tests.gateway.running import until
from tests.gateway.started_cog import SLOW, start_cog

MODEL = "/v1/models/local/model"


def write(path: Path, digest: str, *servers: FakeCog | CogServer) -> Path:
    """The file of the servers."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"upstreams": [one.url for one in servers], "weights_digest": digest}))
    return partial.replace(path)


async def test_servers_of_the_file_take_over_and_those_before_finish(tmp_path: Path):
    async with FakeCog(held=True) as old, FakeCog(pieces=("new",)) as new:
        file = write(tmp_path / "servers.json", "d" * 64, old)
        async with open_app(tmp_path, servers_file=file, cache_mb=1) as client:

            async def version() -> str:
                return (await client.get(MODEL)).json()["latest_version"]["id"]

            before = await version()
            created = (await client.post(f"{MODEL}/predictions", json={"input": {"text": "hello"}})).json()
            write(file, "e" * 64, new)

            async def is_other() -> bool:
                return await version() != before

            await until(is_other)
            answered = await create(client, text="hello")
            assert (answered["output"], answered["version"]) == (["new"], await version())
            metrics = (await client.get("/metrics")).text
            assert f'gateway_upstream_healthy{{upstream="127.0.0.1:{new.port}"}} 1.0' in metrics
            assert str(old.port) not in metrics
            assert 'vllm:num_requests_running{model_name="local/model"} 1.0' in metrics
            old.gate.set()

            async def is_done() -> bool:
                found = (await client.get(f"/v1/predictions/{created['id']}")).json()
                return (found["status"], found["output"]) == ("succeeded", ["a", "b", "c"])

            await until(is_done)
            # What the old ones answered is not given again after one returns to their version.
            write(file, "d" * 64, new)

            async def is_before() -> bool:
                return await version() == before

            await until(is_before)
            assert (await create(client, text="hello"))["output"] == ["new"]


async def test_servers_that_are_not_ready_and_files_that_are_wrong_change_nothing(tmp_path: Path):
    async with FakeCog() as old, FakeCog(pieces=("new",)) as new:
        file = write(tmp_path / "servers.json", "", old)
        new.status = "STARTING"
        async with open_app(tmp_path, servers_file=file) as client:
            write(file, "", new)
            await until(lambda: "/health-check" in new.paths)
            assert (await create(client))["output"] == ["a", "b", "c"]
            file.write_text('{"upstreams": ["nonsense"]}')
            number = len(new.paths)
            for _ in range(3):
                assert (await create(client))["output"] == ["a", "b", "c"]
            new.status = "READY"
            await until(lambda: len(new.paths) > number)

            async def is_new() -> bool:
                return (await create(client))["output"] == ["new"]

            await until(is_new)


async def test_a_file_that_cannot_be_read_and_two_places_for_one_setting_are_refused(tmp_path: Path):
    async with FakeCog() as cog:
        file = write(tmp_path / "servers.json", "", cog)
        for settings, message in (
            ({"servers_file": tmp_path / "none"}, "none"),
            ({"servers_file": file, "upstreams": (cog.url,)}, "GATEWAY_UPSTREAMS"),
            ({"servers_file": file, "weights_digest": "d"}, "GATEWAY_WEIGHTS_DIGEST"),
        ):
            with pytest.raises(SettingsError, match=message):
                async with open_app(tmp_path, **settings):
                    pass


@pytest.mark.server
def test_a_second_server_starts_and_the_first_ends_in_order_without_a_lost_request(tmp_path: Path):
    """The way of docs/improve.md for servers that somebody else starts."""
    folders = [tmp_path / name for name in ("first", "second", "gateway")]
    for folder in folders:
        folder.mkdir()
    first, second = (start_cog(folder) for folder in folders[:2])
    with first, GatewayServer([first.url, second.url], folders[2]) as gateway:
        ended, statuses = threading.Event(), list[str]()

        def send() -> None:
            while not ended.is_set():
                created = gateway.create({"Prefer": "wait"}, nlq=SLOW, cols="['a', 'b']")
                statuses.append(gateway.wait_for(created["id"], "succeeded", "failed")["status"])

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        with second:
            first.process.send_signal(signal.SIGTERM)
            first.process.wait(60)
            number = len(statuses)
            while len(statuses) < number + 8 and any(thread.is_alive() for thread in threads):
                ended.wait(0.05)
            ended.set()
            for thread in threads:
                thread.join()
        assert number > 0
        assert set(statuses) == {"succeeded"}
