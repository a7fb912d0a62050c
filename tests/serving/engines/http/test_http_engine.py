"""What ENGINE=http makes of servers that refuse, break off, ignore the grammar, or are none of vLLM's.

The conformance suite runs it against vLLM's own server. Here a small server gives the answers of a faulty one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import tokenizers
from aiohttp import web
from pydantic import SecretStr

from serving.config import Settings
from serving.constraints import LarkConstraint
from serving.engine import create_engine
from serving.engines.http.engine import HttpEngine
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError, SettingError, UnknownAdapterError
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.conformance.asking import answer
from tests.serving.models import tiny_checkpoints

TOKENIZER = tiny_tokenizers.byte_level()
END = TOKENIZER.eos_token_ids[0]
BASE = {"id": "base", "parent": None, "max_model_len": 64}
LORA = {"id": "sql", "parent": "base"}


def event(*tokens: int, reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": "", "token_ids": list(tokens), "finish_reason": reason, "logprobs": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size), folder)
    tiny_tokenizers.save(TOKENIZER, folder)
    return folder


class Server:
    """Answers with `parts`, or with `status`; keeps what it was asked."""

    def __init__(self) -> None:
        self.models: list[dict[str, object]] = [BASE, LORA]
        self.parts: list[bytes] = []
        self.status, self.text = 200, ""
        self.asked: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.hangs = False
        self.left = asyncio.Event()

    async def list_models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response({"data": self.models})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if self.status != 200:
            return web.Response(status=self.status, text=self.text)
        response = web.StreamResponse()
        await response.prepare(request)
        for part in self.parts:
            await response.write(part)
        if self.hangs:
            try:
                await asyncio.sleep(60)
            finally:
                self.left.set()
        return response


@asynccontextmanager
async def serving(weights: Path, server: Server, **settings: object) -> AsyncIterator[HttpEngine]:
    app = web.Application()
    app.add_routes([web.get("/v1/models", server.list_models), web.post("/v1/completions", server.complete)])
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    made = Settings(engine="http", engine_url=url, weights_dir=weights, **settings)
    try:
        engine = await asyncio.to_thread(create_engine, made)
        try:
            assert isinstance(engine, HttpEngine)
            yield engine
        finally:
            await asyncio.to_thread(engine.close)
    finally:
        await runner.cleanup()


def ask(grammar: str | None = None, adapter: str | None = None, **sampling: object) -> GenerationRequest:
    constraint = None if grammar is None else LarkConstraint(grammar)
    return GenerationRequest("a", (5, 6, 7), SamplingParams(**sampling), constraint, adapter)


async def test_tokens_become_text_wherever_the_body_is_divided(weights: Path) -> None:
    server = Server()
    tokens = TOKENIZER.encode("é!")
    whole = event(*tokens[:1]) + event(*tokens[1:]) + event(END, reason="stop") + DONE
    server.parts = [whole[place : place + 7] for place in range(0, len(whole), 7)]
    async with serving(weights, server) as engine:
        found = await answer(engine, ask(max_tokens=9, seed=3, temperature=0.5))
    assert (found.text, found.finish_reason, found.token_ids) == ("é!", FinishReason.STOP, tuple(tokens))
    (asked,) = server.asked
    expected = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 9, "seed": 3, "temperature": 0.5}
    assert {name: asked[name] for name in expected} == expected
    assert asked["stop_token_ids"] == [END]


async def test_a_prompt_token_without_logits_never_reaches_the_server(weights: Path, tmp_path: Path) -> None:
    """It would read past the end of the embedding there."""
    for file in weights.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    backend = tokenizers.Tokenizer.from_str(TOKENIZER.to_json())
    backend.add_tokens(["zzz"])
    tiny_tokenizers.save(Tokenizer(backend, eos_token_ids=[END]), tmp_path)
    server = Server()
    async with serving(tmp_path, server) as engine:
        with pytest.raises(InvalidRequestError, match=f"prompt token {TOKENIZER.vocab_size} is outside"):
            await answer(engine, GenerationRequest("a", (5, TOKENIZER.vocab_size), SamplingParams()))
    assert server.asked == []


async def test_an_adapter_is_a_model_of_the_server(weights: Path) -> None:
    server = Server()
    server.parts = [event(END, reason="stop")]
    async with serving(weights, server) as engine:
        await answer(engine, ask(adapter="sql"))
        with pytest.raises(UnknownAdapterError, match="sql"):
            await answer(engine, ask(adapter="base"))
    assert [asked["model"] for asked in server.asked] == ["sql"]


async def test_a_grammar_ends_the_answer_without_waiting_for_the_server(weights: Path) -> None:
    server = Server()
    server.parts = [event(*TOKENIZER.encode("yes, of course"))]
    async with serving(weights, server) as engine:
        found = await answer(engine, ask('start: "yes"'))
    assert (found.text, found.finish_reason) == ("yes", FinishReason.STOP)


async def test_a_server_that_ignores_the_grammar_is_found_out(weights: Path) -> None:
    server = Server()
    server.parts = [event(*TOKENIZER.encode("no"))]
    async with serving(weights, server) as engine:
        with pytest.raises(EngineDeadError, match="grammar does not allow; start vLLM with"):
            await answer(engine, ask('start: "yes"'))


@pytest.mark.parametrize(
    ("status", "text", "error", "message"),
    [
        (400, '{"error": {"message": "min_p is not supported"}}', InvalidRequestError, "min_p is not supported"),
        (401, "", EngineDeadError, "set ENGINE_KEY"),
        (429, "", EngineBusyError, "busy"),
        (503, "", EngineBusyError, "busy"),
        (500, "<html>", EngineDeadError, "answered 500: <html>"),
    ],
)
async def test_refusals_say_who_has_to_do_what(
    weights: Path, status: int, text: str, error: type[Exception], message: str
) -> None:
    server = Server()
    server.status, server.text = status, text
    async with serving(weights, server) as engine:
        with pytest.raises(error, match=message):
            await answer(engine, ask())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (event(5), "ended the answer before its last token"),
        (b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n', "streams no token ids"),
        (b"data: {broken\n\n", "streams no token ids"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "failed: .*out of memory"),
    ],
)
async def test_a_broken_stream_is_no_answer(weights: Path, part: bytes, message: str) -> None:
    server = Server()
    server.parts = [part]
    async with serving(weights, server) as engine:
        with pytest.raises(EngineDeadError, match=message):
            await answer(engine, ask())


async def test_leaving_an_answer_closes_its_connection_and_a_silent_server_is_not_healthy(weights: Path) -> None:
    server = Server()
    server.parts, server.hangs = [event(5)], True
    async with serving(weights, server) as engine:
        async with aclosing(engine.generate(ask())) as stream:
            assert (await anext(stream)).token_ids == (5,)
        await asyncio.wait_for(server.left.wait(), 10)
        server.parts = []
        with pytest.raises(EngineDeadError, match="no token within"):
            await engine.health(timeout=0.2)


async def test_the_context_is_the_smaller_one_and_the_key_is_sent(weights: Path) -> None:
    server = Server()
    async with serving(weights, server, max_model_len=32, engine_key=SecretStr("secret")) as engine:
        assert engine.max_model_len == 32
        assert "secret" not in repr(Settings(engine_key="secret", weights_dir=weights))
    assert server.keys == ["Bearer secret"]
    async with serving(weights, server) as engine:
        assert engine.max_model_len == 64


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        ([BASE, {"id": "other"}], {}, "ENGINE_MODEL is not set; .* has: base, other"),
        ([BASE], {"engine_model": "x"}, "ENGINE_MODEL=x is not served; .* has: base"),
        ([{"id": "base"}], {}, "set MAX_MODEL_LEN"),
        ([], {}, "has: none"),
    ],
)
async def test_settings_that_do_not_fit_the_server_are_refused(
    weights: Path, models: list[dict[str, object]], settings: dict[str, object], message: str
) -> None:
    server = Server()
    server.models = models
    with pytest.raises(SettingError, match=message):
        async with serving(weights, server, **settings):
            pass


def test_without_an_address_or_a_server_it_does_not_start(weights: Path) -> None:
    with pytest.raises(SettingError, match="needs ENGINE_URL"):
        create_engine(Settings(engine="http", weights_dir=weights))
    with pytest.raises(EngineDeadError, match="cannot be reached"):
        create_engine(Settings(engine="http", weights_dir=weights, engine_url="http://127.0.0.1:1"))
