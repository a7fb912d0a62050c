"""A matrix of other people's clients, unmodified, with only an address and a key: each row works or says why not.

The clients of a group share an environment, which the project does not need: those of requirements/clients.txt, those
of requirements/llama-index.txt, and npm's of tests/gateway/javascript/. One subprocess asks with all of a group.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.environment.enter import installed_environment
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.openai.conftest import MODEL

pytestmark = [pytest.mark.server, pytest.mark.index, pytest.mark.timeout(900)]  # the first import compiles all packages
# Without these, packages ask addresses of their own.
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
FOLDER = Path(__file__).parent
TEXT = "one, two, three"
TEA = {"item": "tea", "count": 2}
RESULT = "<tool_response>\n2 x tea\n</tool_response>"  # what the model reads after a call of the tool
ENVIRONMENTS = {"python_rows": "clients", "llama_index_rows": "llama-index"}
VERCEL = {
    "text": TEXT,
    "turns": TEXT,
    "stream": TEXT,
    "object": TEA,
    "stream_object": TEA,
    "no_schema": TEA,
    "output": TEA,
    "tool_required": TEA,
    "tool_named": TEA,
    "tools_auto": RESULT,
    "tools_auto_stream": [TEXT, TEA],
    "tools_and_output": TEA,
    "tools_and_output_call": TEA,
}
WORKS: dict[str, dict[str, Any]] = {
    "python_rows": {
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
        "langchain_bind_tools_and_response_format": [TEA, TEA],
        "langchain_responses": TEXT,
        "langchain_responses_stream": TEXT,
        "langchain_responses_json_schema": TEA,
        "agents_text": TEXT,
        "agents_stream": TEXT,
        "agents_turns": TEXT,
        "agents_output_type": TEA,
        "agents_tool_required": "2 x tea",
        "agents_tool_auto": RESULT,
        "agents_tool_auto_and_output_type": TEA,
        "pydantic_ai_text": TEXT,
        "pydantic_ai_stream": TEXT,
        "pydantic_ai_tool_output": TEA,
        "pydantic_ai_native_output": TEA,
        "pydantic_ai_responses": TEXT,
        "pydantic_ai_responses_tool_output": TEA,
        "pydantic_ai_function_auto": RESULT,
        "pydantic_ai_function_auto_and_native_output": TEA,
        "instructor_tools": TEA,
        "instructor_json_schema": TEA,
        "instructor_responses_tools": TEA,
        "litellm_chat": TEXT,
        "litellm_stream": TEXT,
        "litellm_response_format": TEA,
        "litellm_responses": TEXT,
        "mcp_call": TEXT,
        "mcp_error": "temperature: -1 is less than the minimum of 0",
    },
    "llama_index_rows": {
        "llama_index_chat": TEXT,
        "llama_index_complete": TEXT,
        "llama_index_complete_without_chat": TEXT,
        "llama_index_stream": TEXT,
        "llama_index_async_stream": TEXT,
        "llama_index_structured_by_tool": TEA,
        "llama_index_structured_by_format": TEA,
        "llama_index_structured_stream": TEA,
        "llama_index_tool_required": TEA,
        "llama_index_tool_auto": [TEXT, TEA],
        "llama_index_tool_auto_stream": [TEXT, TEA],
        "llama_index_predict_and_call": "2 x tea",
        "llama_index_agent": RESULT,
        "llama_index_responses": TEXT,
        "llama_index_responses_stream": TEXT,
        "llama_index_responses_structured": TEA,
        "llama_index_responses_tool_auto": [TEXT, TEA],
        "llama_index_responses_agent": RESULT,
    },
    "ask.mjs": {
        "openai_js_chat": TEXT,
        "openai_js_chat_stream": TEXT,
        "openai_js_chat_parse": TEA,
        "openai_js_chat_tool": ["tool_calls", TEA, True],
        "openai_js_chat_run_tools": RESULT,
        "openai_js_responses": TEXT,
        "openai_js_responses_stream": TEXT,
        "openai_js_responses_parse": TEA,
        "openai_js_responses_tool_auto": [TEXT, TEA],
        "replicate_js_run": TEXT,
        "replicate_js_stream": TEXT,
        **{f"vercel_{api}_{name}": given for api in ("chat", "responses") for name, given in VERCEL.items()},
    },
}
EMBEDDINGS = "the model here writes text and makes no embeddings"
FAILS = {  # with the error that a user sees
    "python_rows": {"openai_embeddings": ("NotFoundError", EMBEDDINGS)},
    "llama_index_rows": {"llama_index_openai_class": ("ValueError", "Please provide a valid OpenAI model name")},
    "ask.mjs": {
        "openai_js_refused": ("BadRequestError", "400 unknown parameter: 'guided_json'; remove it"),
        "vercel_embed": ("APICallError", EMBEDDINGS),
    },
}
GROUPS = sorted(WORKS)


@pytest.fixture(scope="module")
def found(chat_gateway: GatewayServer, request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """What each row of a group got."""

    @functools.cache
    def ask(group: str) -> dict[str, Any]:
        if group not in ENVIRONMENTS:
            return request.getfixturevalue("javascript").run(FOLDER / group, chat_gateway.url, MODEL)
        python = installed_environment(ENVIRONMENTS[group]) / "bin" / "python"
        own = {"OPENAI_BASE_URL": f"{chat_gateway.url}/v1", "OPENAI_API_KEY": "any", **QUIET}
        command = [python, FOLDER / "ask.py", chat_gateway.url, MODEL, group]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


@pytest.mark.parametrize(("group", "row"), [(group, row) for group in GROUPS for row in WORKS[group]])
def test_it_works(found, group, row):
    assert found(group)[row] == {"given": WORKS[group][row]}


@pytest.mark.parametrize(("group", "row"), [(group, row) for group in GROUPS for row in FAILS[group]])
def test_its_user_sees_why_not(found, group, row):
    kind, text = FAILS[group][row]
    assert found(group)[row]["error"].startswith(f"{kind}: ")
    assert text in found(group)[row]["error"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_row_is_expected(found, group):
    assert found(group).keys() == WORKS[group].keys() | FAILS[group].keys()
