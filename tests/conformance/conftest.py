"""One engine of each kind for the whole suite, and after every test a look at what is left in it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from serving.engine import Engine
from serving.types import EngineStats
from tests.conformance.kinds import KINDS, Kind, chosen


@pytest.fixture(scope="session", params=chosen())
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def running_engine(kind: Kind) -> Iterator[Engine]:
    engine = kind.start()
    yield engine
    engine.close()


@pytest.fixture
def engine(running_engine: Engine) -> Iterator[Engine]:
    """The shared engine. A test that leaves a request or a block behind fails, whatever it was about."""
    before = running_engine.stats()
    yield running_engine
    deadline = time.monotonic() + 10
    while not is_idle(after := running_engine.stats(), before):
        assert time.monotonic() < deadline, f"left behind: {after}"
        time.sleep(0.01)


def is_idle(now: EngineStats, before: EngineStats) -> bool:
    """Nothing runs or waits, and no block is held that was free before."""
    return (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, before.num_free_blocks)
