"""scripts/serve --ray on a real Ray: answers, routing by prefix, other weights and lost replicas under load."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from pipeline.environment.enter import installed_environment
from tests.cog.tiny_weights import make_tiny_weights
from tests.free_ports import free_port
from tests.pipeline.ray_serve.ray_service import GATEWAY, ROOT, Load, RayService, fail

pytestmark = [pytest.mark.index, pytest.mark.timeout(900)]  # Ray's processes take long to start on busy cores


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Settings for two sets of weights, which were trained on other prompts and so give other answers.

    Answers take seconds, most of which they wait: the load is of many requests at once, and leaves the cores free.
    """
    made = []
    for name, surface in [("old", "json"), ("new", "python-repr")]:
        folder = tmp_path_factory.mktemp(name)
        made.append(make_tiny_weights(folder, surface=surface) | {"FAKE_STEP_SECONDS": "0.05"})
    return made


@contextmanager
def started(gateway: Path, settings: dict[str, str], *options: str) -> Iterator[RayService]:
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        service = RayService(Path(folder), gateway / "predictions.sqlite", settings, *options)
        try:
            service.wait_until_ready()
            yield service
        finally:
            said = service.close()
        assert service.process.returncode == 0, said[-3000:]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, weights: list[dict[str, str]]) -> Iterator[RayService]:
    with started(tmp_path_factory.mktemp("gateway"), weights[0], "--replicas", "2") as service:
        yield service


def ask(service: RayService, **inputs: object) -> dict:
    url = f"{service.url}/v1/models/local/tiny/predictions"
    body = {"input": {"nlq": "count by a", "cols": "a, b", **inputs}}
    return httpx.post(url, json=body, headers={"Prefer": "wait=60"}, timeout=100).json()


def test_answers_and_errors_are_those_of_cog(service: RayService) -> None:
    answer = ask(service)
    assert answer["status"] == "succeeded", answer
    assert '"COUNT"' in "".join(answer["output"])
    assert len(answer["output"]) > 1, "it streams"
    assert answer["metrics"].keys() >= {"input_token_count", "finish_reason", "predict_time", "replica"}
    assert "input.max_tokens: 'x' is not of type 'integer'" in ask(service, max_tokens="x")["detail"]
    failed = ask(service, cols="['a")
    assert (failed["status"], failed["metrics"]["error_type"]) == ("failed", "InputError")
    assert failed["error"].startswith("cols: ")


def test_a_prompts_beginning_stays_with_its_replica(service: RayService) -> None:
    def replicas(number: int) -> set[str]:
        return {ask(service, cols=f"a{number}, b")["metrics"]["replica"] for _ in range(4)}

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(replicas, range(8)))
    assert [len(replicas) for replicas in found] == [1] * 8
    assert len(set.union(*found)) == 2, "other prompts may have the other replica"


@pytest.mark.slow
async def test_other_weights_under_load_without_a_failed_request(
    service: RayService, weights: list[dict[str, str]]
) -> None:
    before = ask(service)
    load, started = Load(service.url, at_once=60), time.monotonic()
    running = asyncio.create_task(load.run())
    await load.wait_for(50)
    update = service.start(weights[1], "--address", service.cluster, "--replicas", "2")
    said, _ = await asyncio.to_thread(update.communicate)
    num_during = len(load.ended)
    await load.wait_for(200)
    load.is_stopped = True
    await running
    if update.returncode:
        fail(said)
    failed = [one for one in load.ended if one.get("status") != "succeeded"]
    assert {str(one.get("error"))[:300] for one in failed} == set()
    assert num_during > 100, "it went on answering"
    assert ask(service)["output"] != before["output"]
    async with asyncio.timeout(120):  # the gateway asks every second, on busy cores less often
        while ask(service)["version"] == before["version"]:
            await asyncio.sleep(1)
    replicas = {one["metrics"]["replica"] for one in load.ended}
    assert len(replicas) == 4, "two old ones and two new ones"
    took = time.monotonic() - started
    print(f"{len(load.ended)} predictions in {took:.0f} s, {num_during} of them until the update was complete")


async def test_a_replica_is_killed_under_load(service: RayService) -> None:
    load = Load(service.url, at_once=64)
    running = asyncio.create_task(load.run())
    await load.wait_for(100)
    victim, *others = service.replicas()
    assert len(others) == 1
    victim.kill()
    await load.wait_for(200)
    load.is_stopped = True
    await running
    failed = [one for one in load.ended if one.get("status") != "succeeded"]
    # A client that has received a part of an answer gets an error; the other requests are sent to the new replica.
    broken_off = [one for one in failed if one.get("output") and "ended while it answered" in one["error"]]
    assert [one for one in failed if one not in broken_off] == []
    async with asyncio.timeout(300):
        while len(service.replicas()) < 2:
            await asyncio.sleep(1)
    assert ask(service)["status"] == "succeeded"
    print(f"{len(load.ended)} predictions, {len(failed)} of them were broken off")


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/models/local/tiny/predictions", lambda body: (body["status"], body["detail"])),
        ("/v1/completions", lambda body: (body["error"]["type"], body["error"]["message"])),
    ],
)
async def test_a_request_whose_gateway_dies_gets_an_error_of_its_api(
    service: RayService, path: str, shape: Callable[[dict], tuple[object, str]]
) -> None:
    (gateway,), models = service.replicas(GATEWAY), service.replicas()
    inputs = {"nlq": "count by a", "cols": "a, b"}
    is_openai = path.endswith("completions")
    body = {"model": "tiny", "prompt": json.dumps(inputs)} if is_openai else {"input": inputs}
    ask(service)  # the gateway knows the model's schema
    async with httpx.AsyncClient(timeout=300) as client, asyncio.timeout(600):
        for model in models:
            model.suspend()  # so that the answer has not begun
        asked = asyncio.create_task(client.post(f"{service.url}{path}", json=body, headers={"Prefer": "wait=60"}))
        while not await is_running(client, service):
            assert not asked.done(), asked.result().text
            await asyncio.sleep(0.2)
        gateway.kill()
        answer = await asked
        for model in models:
            model.resume()
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "5", answer.text
        assert shape(answer.json())[1] == "the gateway ended while it had this request; send it again"
        while (await client.post(f"{service.url}{path}", json=body)).is_error:  # another one is started
            await asyncio.sleep(1)


async def is_running(client: httpx.AsyncClient, service: RayService) -> bool:
    found = (await client.get(f"{service.url}/v1/predictions")).json()["results"]
    return any(one["status"] in ("starting", "processing") for one in found)


def test_a_prediction_can_be_cancelled(service: RayService) -> None:
    created = httpx.post(
        f"{service.url}/v1/models/local/tiny/predictions", json={"input": {"nlq": "x " * 900, "cols": "a, b"}}
    ).json()
    httpx.post(created["urls"]["cancel"])
    with httpx.Client(timeout=60) as client:
        while (final := client.get(created["urls"]["get"]).json())["status"] in ("starting", "processing"):
            pass
    assert final["status"] in ("canceled", "succeeded")


@pytest.mark.slow
async def test_a_replica_is_added_while_requests_wait(tmp_path: Path, weights: list[dict[str, str]]) -> None:
    slow = {**weights[0], "FAKE_STEP_SECONDS": "0.1"}  # requests wait, and the cores are free for the replica
    with started(tmp_path, slow, "--replicas", "1", "--max-replicas", "2") as service:
        load = Load(service.url, at_once=50)  # more than the places of a replica, of which cog.yaml has 32
        running = asyncio.create_task(load.run())
        await load.wait_for(10)
        assert len({one["metrics"]["replica"] for one in load.ended}) == 1
        async with asyncio.timeout(1200):
            while len({one["metrics"]["replica"] for one in load.ended}) < 2:
                assert not load.is_stopped, load.ended[-1:]
                await asyncio.sleep(0.2)
        load.is_stopped = True
        await running
        assert [one for one in load.ended if one.get("status") != "succeeded"] == []
        assert len({one["metrics"]["replica"] for one in load.ended}) == 2, "not more than --max-replicas"


SLOW_PROXY = """
import sys
from ray import serve
from ray.serve._private import api
from pipeline.batch.ray_cluster import connect
from pipeline.ray_serve.application import start_proxy
from pipeline.ray_serve.proxy_errors import PROXY_ENVIRONMENT

api.HTTP_PROXY_TIMEOUT = 0.1  # seconds; Ray's own 60 are too few where the cores are busy
connect(None, PROXY_ENVIRONMENT)
start_proxy("127.0.0.1", int(sys.argv[1]))
print(*(status.value for status in serve.status().proxies.values()))
serve.shutdown()
"""


def test_a_proxy_that_takes_long_to_start_is_waited_for() -> None:
    command = [installed_environment("ray") / "bin" / "python", "-c", SLOW_PROXY, str(free_port())]
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert "HEALTHY" in done.stdout.splitlines(), done.stderr[-3000:]
    assert "takes long to start" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ray", "--bare"), "leave out --bare and --port"),
        (("--replicas", "2"), "add --ray"),
        (("--address", "ray://127.0.0.1:10001"), "give HOST:PORT"),
        (("--ray", "--replicas", "3", "--max-replicas", "2"), "--max-replicas 2 is less than --replicas 3"),
    ],
)
def test_mistakes_are_reported_with_their_remedy(
    weights: list[dict[str, str]], options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**weights[0], "ENGINE": "fake"}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "serve"), *options], capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
