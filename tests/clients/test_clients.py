"""A matrix of other people's clients, unmodified, with only an address and a key: each row works or says why not.

They are pinned in requirements/clients.txt and have an environment of their own, so one subprocess asks with all of
them: `ask.py`, of which a row is a function.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.environment.enter import installed_environment
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.openai.conftest import MODEL

pytestmark = [pytest.mark.server, pytest.mark.index, pytest.mark.timeout(900)]  # the first import compiles all packages
# Without these, three of the packages ask addresses of their own.
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
ASK = Path(__file__).with_name("ask.py")
TEXT = "one, two, three"
TEA = {"item": "tea", "count": 2}
RESULT = "<tool_response>\n2 x tea\n</tool_response>"  # what the model reads after a call of the tool
WORKS = {
    "openai_chat": TEXT,
    "openai_chat_stream": TEXT,
    "openai_chat_parse": TEA,
    "openai_chat_tool": TEA,
    "openai_chat_tool_auto": TEA,
    "openai_responses": TEXT,
    "openai_responses_stream": TEXT,
    "openai_responses_parse": TEA,
    "openai_responses_tool": TEA,
    "openai_responses_tool_auto": [TEXT, TEA],
    "replicate_run": TEXT,
    "replicate_stream": TEXT,
    "langchain_chat": TEXT,
    "langchain_json_schema": TEA,
    "langchain_function_calling": TEA,
    "langchain_json_mode": TEA,
    "langchain_bind_tools_required": TEA,
    "langchain_bind_tools_auto": TEA,
    "langchain_bind_tools_auto_stream": [TEXT, TEA],
    "langchain_responses": TEXT,
    "langchain_responses_stream": TEXT,
    "langchain_responses_json_schema": TEA,
    "agents_text": TEXT,
    "agents_stream": TEXT,
    "agents_turns": TEXT,
    "agents_output_type": TEA,
    "agents_tool_required": "2 x tea",
    "agents_tool_auto": RESULT,
    "pydantic_ai_text": TEXT,
    "pydantic_ai_stream": TEXT,
    "pydantic_ai_tool_output": TEA,
    "pydantic_ai_native_output": TEA,
    "pydantic_ai_responses": TEXT,
    "pydantic_ai_responses_tool_output": TEA,
    "pydantic_ai_function_auto": RESULT,
    "instructor_tools": TEA,
    "instructor_json_schema": TEA,
    "instructor_responses_tools": TEA,
    "litellm_chat": TEXT,
    "litellm_stream": TEXT,
    "litellm_response_format": TEA,
    "litellm_responses": TEXT,
    "mcp_call": TEXT,
    "mcp_error": "temperature: -1 is less than the minimum of 0",
}
FAILS = {  # with the error that a user sees
    "openai_embeddings": ("NotFoundError", "the model here writes text and makes no embeddings"),
}


@pytest.fixture(scope="module")
def found(chat_gateway: GatewayServer) -> dict[str, Any]:
    """What each row got."""
    command = [installed_environment("clients") / "bin" / "python", ASK, chat_gateway.url, MODEL]
    own = {"OPENAI_BASE_URL": f"{chat_gateway.url}/v1", "OPENAI_API_KEY": "any", **QUIET}
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("row", WORKS)
def test_it_works(found, row):
    assert found[row] == {"given": WORKS[row]}


@pytest.mark.parametrize("row", FAILS)
def test_its_user_sees_why_not(found, row):
    kind, text = FAILS[row]
    assert found[row]["error"].startswith(f"{kind}: ")
    assert text in found[row]["error"]


def test_every_row_is_expected(found):
    assert found.keys() == WORKS.keys() | FAILS.keys()
