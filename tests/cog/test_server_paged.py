"""The real Cog server with the small model and the paged engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.endurance.cog_process import CogServer
from tasks.honeycomb.query import parse_query
from tests import small_model
from tests.cog.asking import stream

pytestmark = [pytest.mark.server, pytest.mark.weights]

COLUMNS = ["duration_ms", "name", "service.name", "error", "http.status_code", "trace.parent_id"]
QUESTIONS = ["slowest traces", "p99 of duration by service in the last hour"]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, control: Path) -> Iterator[CogServer]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    reference = "tests/cog/controlled_predict.py:ControlledPredictor"
    env = {"ENGINE": "paged", "CONTROL": str(control), **small_model.SETTINGS}
    with CogServer(reference, env=env, log=log) as server:
        yield server


MAX_TOKENS = 48


def ask(server: CogServer, number: int, name: str) -> dict:
    """The whole prediction; if the answer was cut short, its output has the text that was streamed."""
    inputs = {"nlq": QUESTIONS[number], "cols": str(COLUMNS), "max_tokens": MAX_TOKENS}
    with stream(server, f"{name}-{number}", **inputs) as events:
        seen = list(events)
    shown = [data["chunk"] for event, data, _ in seen if event == "output"]
    return {**seen[-1][1], "shown": "".join(shown)}


def free_blocks(server: CogServer, control: Path) -> tuple[int, int]:
    assert server.health()["status"] == "READY"
    stats = json.loads((control / "stats.json").read_text())
    return stats["num_free_blocks"], stats["num_blocks"]


def test_an_answer_does_not_depend_on_the_batch_and_is_a_query_or_an_error(server):
    numbers = range(len(QUESTIONS))
    alone = [ask(server, number, "alone") for number in numbers]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        batched = list(pool.map(lambda number: ask(server, number, "batched"), numbers))
    for one, other in zip(alone, batched, strict=True):
        assert (one["status"], one["shown"]) == (other["status"], other["shown"]), "a batch changed an answer"
        assert 0 < one["metrics"]["output_token_count"] <= MAX_TOKENS
        if one["status"] == "succeeded":
            parse_query(one["shown"], COLUMNS)
        else:
            assert f"max_tokens: the answer was not complete after {MAX_TOKENS} tokens" in one["error"]


def test_cancel_frees_every_block(server, control):
    free, total = free_blocks(server, control)
    with stream(server, "cancelled", nlq=QUESTIONS[0], cols=str(COLUMNS), max_tokens=2500) as events:
        next(events)
        next(events)
        server.client.post("/predictions/cancelled/cancel")
        *_, (_, prediction, _) = events
    assert prediction["status"] in ("canceled", "succeeded")
    deadline = time.monotonic() + 60
    while free_blocks(server, control) != (free, total):
        assert time.monotonic() < deadline, "blocks are not freed"
        time.sleep(0.1)
