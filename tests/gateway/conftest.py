"""One Cog server and gateways without and with keys for all tests; the engine is a fake that repeats the question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.endurance.cog_process import CogServer
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.hook_receiver import Receiver
from tests.gateway.javascript_clients import JavascriptClients
from tests.gateway.open_app import make_keys
from tests.gateway.started_cog import start_cog


@pytest.fixture(scope="session")
def cog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    with start_cog(tmp_path_factory.mktemp("cog")) as server:
        yield server


@pytest.fixture
def held(cog: CogServer) -> Iterator[Path]:
    """While this file is there, the server writes nothing for questions with "hold"."""
    path = cog.log.with_name("hold")
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def gateway(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """A gateway without keys, which may also be called gateway.example."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "README.md").write_text("# About\n\nA **model**, see [the page](docs/a.md) ![shot](docs/a.png).\n")
    with GatewayServer([cog.url], folder, HOSTS="gateway.example", README=folder / "README.md") as server:
        yield server


@pytest.fixture(scope="session")
def keyed_gateway(cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """A gateway that asks for keys; its `keys` are those of alice and bob, and its client sends alice's."""
    folder = tmp_path_factory.mktemp("keyed-gateway")
    keys = make_keys(folder, "alice", "bob")
    with GatewayServer([cog.url], folder, keys=keys, KEYS="required") as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> JavascriptClients:
    return JavascriptClients(tmp_path_factory.mktemp("javascript"))
