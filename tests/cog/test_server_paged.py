"""The real Cog server, the default weights and our own engine, all together."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from honeycomb.query import parse_query
from tests.cog.cog_server import CogServer

pytestmark = [pytest.mark.server, pytest.mark.weights]

COLUMNS = ["duration_ms", "name", "service.name", "error", "http.status_code", "trace.parent_id"]
QUESTIONS = [
    "slowest traces",
    "errors by service",
    "p99 of duration by name in the last hour",
    "count of requests with status 500",
]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, control: Path) -> Iterator[CogServer]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    reference = "tests/cog/controlled_predict.py:ControlledPredictor"
    with CogServer(reference, env={"ENGINE": "paged", "CONTROL": str(control)}, log=log) as server:
        yield server


def ask(server: CogServer, question: str) -> dict:
    return server.post(nlq=question, cols=str(COLUMNS), max_tokens=600).json()


def free_blocks(server: CogServer, control: Path) -> tuple[int, int]:
    assert server.health()["status"] == "READY"
    stats = json.loads((control / "stats.json").read_text())
    return stats["num_free_blocks"], stats["num_blocks"]


def test_every_answer_is_a_query_over_the_columns_given_alone_and_together(server, control):
    alone = [ask(server, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: ask(server, question), QUESTIONS))
    for one, other in zip(alone, together, strict=True):
        assert one["status"] == "succeeded", one
        assert "".join(one["output"]) == "".join(other["output"]), "a batch changed an answer"
        parse_query("".join(one["output"]), COLUMNS)
        assert one["metrics"]["model_passes"] > 0


def test_cancel_gives_every_block_back(server, control):
    free, total = free_blocks(server, control)
    with server.stream("cancelled", nlq=QUESTIONS[0], cols=str(COLUMNS), max_tokens=2500) as events:
        next(events)
        next(events)
        server.client.post("/predictions/cancelled/cancel")
        *_, (_, prediction, _) = events
    assert prediction["status"] in ("canceled", "succeeded")
    deadline = time.monotonic() + 5
    while free_blocks(server, control) != (free, total) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert free_blocks(server, control) == (free, total)
