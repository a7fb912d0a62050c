"""The real Cog server with the small model and the real vLLM."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from lab.endurance.cog_process import CogServer
from lab.endurance.own_weights import lock_text
from tasks.honeycomb.query import parse_query
from tests import small_model
from tests.cog.asking import post, stream
from tests.cog.control import CONTROLLED, Control
from tests.conformance.kinds import WEIGHTS, vllm_dtype
from tests.serving.engines.vllm.vllm_processes import vllm_process, vllm_processes

pytestmark = [pytest.mark.server, pytest.mark.vllm]

SETUP_SECONDS = 900  # about 30 on a machine that does nothing else
PLACES = 6
SHARED = ["duration_ms", "name", "service.name", "error"]
LONG = "count and p99 of duration_ms by name and service.name where error is true and name is not checkout"


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Control:
    return Control(tmp_path_factory.mktemp("control"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, control: Control) -> Iterator[CogServer]:
    assert (WEIGHTS / "task.json").is_file(), f"the Predictor cannot load {WEIGHTS}"
    folder = tmp_path_factory.mktemp("server")
    lock = small_model.LOCK
    if WEIGHTS != small_model.WEIGHTS:  # vLLM's CPU build needs other weights on some machines
        lock = folder / "weights.lock"
        lock.write_text(lock_text(WEIGHTS))
    env = {
        "ENGINE": "vllm",
        "WEIGHTS_DIR": str(WEIGHTS),
        "WEIGHTS_LOCK": str(lock),
        "CONTROL": str(control.folder),
        "MAX_NUM_SEQS": str(PLACES),
        "DTYPE": vllm_dtype(),
        "MAX_MODEL_LEN": "512",
        "NUM_THREADS": "1",
    }
    log = folder / "server.log"
    with CogServer(CONTROLLED, env=env, log=log, concurrency=PLACES, setup_seconds=SETUP_SECONDS) as server:
        started = vllm_processes(server.process.pid)
        yield server
    deadline = time.monotonic() + 60
    while left := [process for process in started if process.is_running() and process.status() != "zombie"]:
        assert time.monotonic() < deadline, f"the server left {left} behind"
        time.sleep(0.1)


def read(server: CogServer, name: str, columns: list[str], nlq: str = LONG) -> list[tuple[str, Any, float]]:
    with stream(server, name, nlq=nlq, cols=str(columns)) as events:
        return list(events)


def test_a_query_is_streamed(server: CogServer) -> None:
    events = read(server, "live", SHARED)
    name, prediction, _ = events[-1]
    assert (name, prediction["status"]) == ("completed", "succeeded"), prediction
    shown = [data["chunk"] for name, data, _ in events if name == "output"]
    assert len(shown) > 3
    parse_query("".join(shown), SHARED)


def test_as_many_predictions_as_slots_run_at_the_same_time_each_with_its_own_columns(server: CogServer) -> None:
    lists = [[f"column_{number}", f"other_{number}"] for number in range(PLACES)]
    with ThreadPoolExecutor(PLACES) as pool:
        streams = list(pool.map(lambda c: read(server, f"many-{c[0]}", c, f"p99 of {c[0]} by {c[1]}"), lists))
    assert max(s[0][2] for s in streams) < min(s[-1][2] for s in streams), "a prediction waited for another one"
    for columns, events in zip(lists, streams, strict=True):
        prediction = events[-1][1]
        assert prediction["status"] == "succeeded", prediction
        text = "".join(prediction["output"])
        parse_query(text, columns)
        assert columns[0] in text or columns[1] in text
        metrics = prediction["metrics"]
        assert 0 < metrics["model_passes"] < metrics["output_token_count"] / 4, "drafts of our drafter are accepted"
        assert 0 < metrics["time_to_first_token"] < metrics["predict_time"]


def test_cancel_ends_the_prediction_and_frees_its_slot(server: CogServer, control: Control) -> None:
    with stream(server, "cancel-me", nlq=LONG, cols=str(SHARED)) as events:
        next(event for event in events if event[0] == "output")
        assert server.client.post("/predictions/cancel-me/cancel").status_code == 200
        *_, (name, prediction, _) = events
    assert (name, prediction["status"]) == ("completed", "canceled")
    control.wait_until_idle(server)


def test_a_client_that_disconnects_frees_its_slot(server: CogServer, control: Control) -> None:
    with stream(server, "leave", nlq=LONG, cols=str(SHARED)) as events:
        next(event for event in events if event[0] == "output")
    control.wait_until_idle(server)


def test_the_quantization_kernel_that_vllm_chose_is_logged(server: CogServer) -> None:
    """vLLM chooses the kernel, so the log must show the choice to the operator."""
    if "quantization_config" not in (WEIGHTS / "config.json").read_text():
        pytest.skip("these weights are not quantized")
    assert "Kernel for AutoAWQ" in server.log.read_text()


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop a process inside the `with` block without ending it."""
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def test_an_engine_that_hangs_is_unhealthy_until_it_continues(server: CogServer) -> None:
    assert server.health()["status"] == "READY"
    with stopped(vllm_process(server.process.pid, "Worker")):
        health = server.wait_for("UNHEALTHY", seconds=60)
    assert "no token within" in health["user_healthcheck_error"]
    server.wait_for("READY", seconds=60)


def test_a_dead_engine_process_fails_pending_predictions_and_the_health_check(server: CogServer) -> None:
    """This test is last, because it leaves the server unusable."""
    begun = threading.Barrier(PLACES + 1)

    def predict(number: int) -> dict[str, Any]:
        with stream(server, f"doomed-{number}", nlq=LONG, cols=str(SHARED)) as events:
            next(event for event in events if event[0] == "output")
            begun.wait(120)
            *_, (_, prediction, _) = events
        return prediction

    worker = vllm_process(server.process.pid, "Worker")
    core = vllm_process(server.process.pid, "EngineCore")
    with ThreadPoolExecutor(PLACES) as pool:
        futures = [pool.submit(predict, number) for number in range(PLACES)]
        begun.wait(120)
        with stopped(worker):  # so that none of them ends by itself
            core.kill()
            health = server.wait_for("UNHEALTHY", seconds=60)
            predictions = [future.result(timeout=60) for future in futures]
    assert "engine process ended" in health["user_healthcheck_error"]
    assert {prediction["status"] for prediction in predictions} == {"failed"}
    assert all("engine process ended" in prediction["error"] for prediction in predictions)
    assert "engine process ended" in post(server, nlq="a", cols="a").json()["error"]
