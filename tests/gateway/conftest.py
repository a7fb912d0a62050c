"""One Cog server and doors without and with keys for all tests; the engine is a fake that repeats the question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.keys.key_file import KeyFile
from pipeline.endurance.cog_process import CogServer
from tests.gateway.door_server import DoorServer
from tests.gateway.javascript_clients import JavascriptClients
from tests.gateway.started_cog import start_cog


@pytest.fixture(scope="session")
def cog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    folder = tmp_path_factory.mktemp("cog")
    with start_cog(folder) as server:
        yield server


@pytest.fixture(scope="session")
def door(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    """It may also be called door.example."""
    folder = tmp_path_factory.mktemp("door")
    with DoorServer([f"http://127.0.0.1:{cog.port}"], folder, HOSTS="door.example") as server:
        yield server


@pytest.fixture(scope="session")
def keyed_door(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    """A door that asks for keys; its `keys` are those of alice and bob, and its client sends alice's."""
    folder = tmp_path_factory.mktemp("keyed-door")
    with closing(KeyFile(folder / "keys.sqlite")) as file:
        keys = {name: file.create(name) for name in ("alice", "bob")}
    with DoorServer([f"http://127.0.0.1:{cog.port}"], folder, keys=keys, KEYS="required") as server:
        yield server


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> JavascriptClients:
    return JavascriptClients(tmp_path_factory.mktemp("javascript"))
