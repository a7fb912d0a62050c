"""Gateways in front of a chat package and of a schema package with a fake engine, and the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lab.endurance.cog_process import CogServer
from pipeline.package.signature import write_inputs
from pipeline.paths import ROOT
from tests.cog.tiny_weights import make_tiny_weights
from tests.gateway.gateway_server import GatewayServer

TASKS = ROOT / "tasks"
MODEL = "test"
TEXT = "the slowest traces of the checkout service"
CHAT = {"task": "chat", "name": "tiny", "defaults": {"temperature": 0, "max_tokens": 1000}}
ORDER = {
    "type": "object",
    "properties": {"item": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
    "required": ["item", "count"],
}


class Order(BaseModel):
    item: str
    count: int


def ask(client: openai.OpenAI, text: str = TEXT, **parameters: Any) -> Any:
    """An answer to one message."""
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **parameters)


def start_package(folder: Path, source: str, task: Mapping[str, Any], **files: str) -> CogServer:
    """A Cog server of a package with the inputs of a task."""
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))
    usual = (TASKS / task["task"] / "predict.py").read_text("utf-8")  # for a source that only imports its class
    write_inputs(document, source if "def predict" in source else usual, "Predictor")
    (folder / ".cog").mkdir()
    (folder / ".cog" / "openapi_schema.json").write_text(json.dumps(document))
    (folder / "predict.py").write_text(source)
    env = make_tiny_weights(folder, task=task, files=files) | {"ENGINE": "fake", "PYTHONPATH": f"{folder}:{ROOT}"}
    return CogServer("predict.py:Predictor", env=env, log=folder / "cog.log", package=folder)


@pytest.fixture(scope="session")
def chat_cog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    template = (ROOT / "tests" / "serving" / "text" / "templates" / "smollm2.jinja").read_text("utf-8")
    source = "from tests.gateway.openai.scripted_chat import Predictor\n"
    files = {"chat_template.jinja": template}
    with start_package(tmp_path_factory.mktemp("chat"), source, CHAT, **files) as server:
        yield server


@pytest.fixture(scope="session")
def chat_gateway(chat_cog: CogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with GatewayServer([chat_cog.url], tmp_path_factory.mktemp("chat-gateway")) as server:
        yield server


@pytest.fixture(scope="session")
def schema_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    source = (TASKS / "schema" / "predict.py").read_text("utf-8")
    task = {"task": "schema", "name": "tiny", "schema": ORDER, "template": "{text}"}
    with (
        start_package(tmp_path_factory.mktemp("schema"), source, task) as cog,
        GatewayServer([cog.url], tmp_path_factory.mktemp("schema-gateway")) as server,
    ):
        yield server


def client_of(gateway: GatewayServer, max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=max_retries)


@pytest.fixture
def client(chat_gateway: GatewayServer) -> Iterator[openai.OpenAI]:
    with client_of(chat_gateway) as client:
        yield client
