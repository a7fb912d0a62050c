"""One Cog server and one door for all tests of the door; the engine is a fake that repeats the question."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cog.cog_server import CogServer
from tests.gateway.door_server import DoorServer
from tests.gateway.started_cog import start_cog


@pytest.fixture(scope="session")
def cog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    folder = tmp_path_factory.mktemp("cog")
    with start_cog(folder) as server:
        yield server


@pytest.fixture(scope="session")
def door(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    with DoorServer([f"http://127.0.0.1:{cog.port}"], tmp_path_factory.mktemp("door")) as server:
        yield server
