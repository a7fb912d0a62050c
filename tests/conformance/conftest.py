"""Starts one engine of each kind for the whole suite; after every test, checks that no request or block is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.engine import Engine
from serving.types import EngineStats
from tests.conformance.kinds import KINDS, NOT_SLOW, ONLY, Kind, selected_kinds


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_of_other_files(item, NOT_SLOW):
            item.add_marker(pytest.mark.slow)
    left_out = [item for item in items if _is_of_other_files(item, ONLY) and "CONFORMANCE_ALL" not in os.environ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_of_other_files(item: pytest.Item, files: dict[str, tuple[str, ...]]) -> bool:
    if item.path.parent != Path(__file__).parent:  # the hook gets the tests of all folders
        return False
    call = getattr(item, "callspec", None)
    kind = None if call is None else call.params.get("kind")
    return kind in files and item.path.name not in files[kind]


@pytest.fixture(scope="session", params=selected_kinds())
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def running_engine(kind: Kind) -> Iterator[Engine]:
    engine = kind.start()
    yield engine
    engine.close()


@pytest.fixture
def engine(running_engine: Engine) -> Iterator[Engine]:
    """The shared engine. A test that leaves a request or a block in it fails."""
    before = running_engine.stats()
    yield running_engine
    deadline = time.monotonic() + 60
    while not is_idle(after := running_engine.stats(), before):
        assert time.monotonic() < deadline, f"left behind: {after}"
        time.sleep(0.01)


def is_idle(now: EngineStats, before: EngineStats) -> bool:
    """Whether nothing runs or waits, and every block that was free before is free now."""
    return (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, before.num_free_blocks)
