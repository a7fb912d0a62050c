"""The Model Context Protocol without a client: what it answers and refuses; the official client is in tests/clients."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from gateway.mcp.routes import VERSIONS
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import bearer, make_keys, open_app
from tests.gateway.running import until

TEXT = {"items": {"type": "string"}, "type": "array", "x-cog-array-display": "concatenate"}
PROPERTIES = {
    "text": {"type": "string", "x-order": 0},
    "size": {"allOf": [{"$ref": "#/components/schemas/size"}], "nullable": True, "default": None},
    "count": {"type": "integer", "nullable": True, "default": None},
    "nullable": {"type": "boolean"},
}


def fake(**parts: Any) -> FakeCog:
    """A server whose schema has all that needs a translation."""
    cog = FakeCog(properties=PROPERTIES, **parts)
    schemas = cog.schema["components"]["schemas"]
    schemas["Input"]["required"] = ["text"]
    schemas |= {"Output": TEXT, "size": {"type": "string", "enum": ["s", "m"]}}
    return cog


async def ask(client: httpx.AsyncClient, method: str, headers: Any = None, **params: Any) -> httpx.Response:
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return await client.post("/mcp", json=message, headers=headers)


async def result(client: httpx.AsyncClient, method: str, **params: Any) -> Any:
    response = await ask(client, method, **params)
    assert response.status_code == 200, response.text
    content = response.json()
    assert list(content) == ["jsonrpc", "id", "result"], content
    assert (content["jsonrpc"], content["id"]) == ("2.0", 7)
    return content["result"]


async def error(response: httpx.Response, status: int) -> Any:
    content = response.json()
    assert response.status_code == status, content
    assert list(content) == ["jsonrpc", "id", "error"]
    return content["error"]


async def test_a_client_is_greeted_in_its_version_or_in_the_newest(tmp_path):
    async with fake() as cog, open_app(tmp_path, cog) as client:
        for asked, answered in ((VERSIONS[-1], VERSIONS[-1]), ("2024-11-05", VERSIONS[0])):
            greeting = await result(client, "initialize", protocolVersion=asked, capabilities={}, clientInfo={})
            assert greeting["protocolVersion"] == answered
            assert greeting["capabilities"] == {"tools": {"listChanged": False}}
        assert await result(client, "ping") == {}
        for silent in ({"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 1}):
            response = await client.post("/mcp", json=silent)
            assert (response.status_code, response.content) == (202, b"")


async def test_the_model_is_a_tool_whose_schemas_hold(tmp_path):
    async with fake() as cog, open_app(tmp_path, cog, model="local/tiny.chat") as client:
        [tool] = (await result(client, "tools/list"))["tools"]
        assert (tool["name"], tool["title"]) == ("tiny_chat", "local/tiny.chat")
        taken = Draft202012Validator(tool["inputSchema"])
        Draft202012Validator.check_schema(tool["inputSchema"])
        assert tool["inputSchema"]["properties"]["text"] == {"type": "string"}
        for right in ({"text": "a"}, {"text": "a", "size": "s", "count": None, "nullable": True}):
            assert taken.is_valid(right)
        for wrong in ({}, {"text": 1}, {"text": "a", "size": "x"}, {"text": "a", "other": 1}):
            assert not taken.is_valid(wrong)
        called = await result(client, "tools/call", name="tiny_chat", arguments={"text": "hi", "count": None})
        assert called == {
            "content": [{"type": "text", "text": "abc"}],
            "structuredContent": {"output": "abc"},
            "isError": False,
        }
        assert Draft202012Validator(tool["outputSchema"]).is_valid(called["structuredContent"])
        [(_, sent)] = cog.requests
        assert sent["input"] == {"text": "hi"}
        kept = (await client.get("/v1/predictions")).json()["results"]
        assert [one["output"] for one in kept] == [["a", "b", "c"]]


async def test_an_output_that_is_no_text_is_an_object_and_its_json(tmp_path):
    async with fake() as cog, open_app(tmp_path, cog) as client:
        own = {"type": "array", "items": {"$ref": "#/components/schemas/size"}}
        cog.schema["components"]["schemas"]["Output"] = own
        [tool] = (await result(client, "tools/list"))["tools"]
        called = await result(client, "tools/call", name=tool["name"], arguments={"text": "hi"})
        assert called["structuredContent"] == {"output": ["a", "b", "c"]}
        assert called["content"][0]["text"] == '["a", "b", "c"]'
        given = Draft202012Validator(tool["outputSchema"])
        assert given.is_valid({"output": ["s"]})
        assert not given.is_valid({"output": ["x"]})


async def test_what_the_calling_model_can_correct_is_a_result(tmp_path):
    failed = {"status": "failed", "error": "text: is blank"}
    async with fake(end=failed) as cog, open_app(tmp_path, cog) as client:
        called = await result(client, "tools/call", name="model", arguments={"text": "hi"})
        assert called == {"content": [{"type": "text", "text": "text: is blank"}], "isError": True}
        called = await result(client, "tools/call", name="model", arguments={"other": "hi"})
        assert called["isError"]
        assert "is not an input of this model; it has text" in called["content"][0]["text"]


@pytest.mark.parametrize(
    ("body", "status", "code", "text"),
    [
        (b"{", 400, -32700, "not JSON"),
        (b"[]", 400, -32600, "no message"),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', 400, -32600, "only '2.0'"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', 400, -32600, "method"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', 200, -32601, "'resources/list'"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', 200, -32602, "params.name"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}', 200, -32602, "'model' is"),
        (b"x" * 5000, 413, -32600, "limit"),
    ],
)
async def test_what_is_wrong_is_an_error_of_json_rpc(tmp_path, body, status, code, text):
    async with fake() as cog, open_app(tmp_path, cog, max_body_bytes=4096) as client:
        found = await error(await client.post("/mcp", content=body), status)
        assert found["code"] == code
        assert text in found["message"]


async def test_other_versions_methods_and_servers_that_are_away_are_refused(tmp_path):
    async with fake() as cog, open_app(tmp_path, cog) as client:
        found = await error(await ask(client, "ping", {"MCP-Protocol-Version": "2099-01-01"}), 400)
        assert found["data"] == {"supported": [*VERSIONS], "requested": "2099-01-01"}
        assert (await client.get("/mcp")).status_code == 405  # there is no stream of the server's own messages
        assert (await ask(client, "ping", {"Origin": "https://evil.example"})).status_code == 403
        await cog.stop()
    async with open_app(tmp_path, cog) as client:
        response = await ask(client, "tools/list")
        assert (await error(response, 503))["code"] == -32603
        assert int(response.headers["retry-after"]) >= 1


async def test_keys_and_limits_hold(tmp_path):
    keys = make_keys(tmp_path, "alice", per_minute=1)
    async with fake() as cog, open_app(tmp_path, cog, keys="required") as client:
        response = await ask(client, "tools/list")
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        alice = bearer(keys["alice"])
        for status in (200, 429):
            response = await ask(client, "tools/call", alice, name="model", arguments={"text": "hi"})
            assert response.status_code == status, response.text


async def test_a_client_that_disconnects_cancels_its_call(tmp_path):
    async with fake(held=True) as cog, open_app(tmp_path, cog) as client:
        calling = asyncio.create_task(ask(client, "tools/call", name="model", arguments={"text": "hi"}))
        await until(lambda: bool(cog.asked))
        calling.cancel()
        await until(lambda: bool(cog.cancelled))
        assert cog.cancelled == cog.asked
