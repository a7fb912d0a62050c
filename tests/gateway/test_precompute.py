"""scripts/precompute: what a file may have, and what becomes of its lines at a gateway with a cache."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter

import httpx
import pytest
from typer.testing import CliRunner

from gateway.precompute import GatewayClient, GatewayUnusableError, Line, app, read_lines, send_lines
from tests.gateway.fake_cog import FakeCog
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.open_app import CACHE, make_keys, open_app
from tests.gateway.running import until

PROPERTIES = {"text": {"type": "string"}, "temperature": {"type": "number", "default": 0.0}}


def lines_of(*texts: str) -> list[Line]:
    return [Line(number, {"text": text}) for number, text in enumerate(texts, start=1)]


async def precomputed(client: httpx.AsyncClient, lines, *, refresh=False, concurrency=2) -> tuple[int, int, list]:
    """How many were new and already cached, and the problems."""
    problems: list[Line] = []
    gateway = GatewayClient(client, refresh=refresh)
    await gateway.connect()
    counts = Counter()
    await send_lines(lines, gateway, concurrency, counts, lambda line: line.problem and problems.append(line))
    assert counts.total() == len(lines)
    return counts["new"], counts["cached"], problems


def test_both_shapes_of_lines_are_read_and_wrong_ones_are_explained():
    file = b'\xef\xbb\xbf{"text": "\xc3\xa9"}\n\n{"input": {"text": "b"}, "expected": 1}\r\n{"input": "c"}\n'
    file += b'["d"]\n{"text": \n{"text": "\xff"}\n7'
    *good, array, cut, binary, number = read_lines(io.BytesIO(file))
    assert good == [Line(1, {"text": "é"}), Line(3, {"text": "b"}), Line(4, {"input": "c"})]
    assert [problem.number for problem in (array, cut, binary, number)] == [5, 6, 7, 8]
    assert array.problem.startswith("is a list; give an object of inputs such as")
    assert cut.problem.startswith("is not JSON: Expecting value")
    assert "utf-8" in binary.problem
    assert number.problem.startswith("is no object")


async def test_lines_are_new_then_cached_and_new_again_when_asked(tmp_path):
    async with FakeCog(properties=PROPERTIES) as cog, open_app(tmp_path, cog, **CACHE) as client:
        assert await precomputed(client, lines_of("a", "b", "c")) == (3, 0, [])
        assert await precomputed(client, lines_of("c", "b", "d")) == (1, 2, [])
        assert await precomputed(client, lines_of("a", "b"), refresh=True) == (2, 0, [])
        assert len(cog.asked) == 6


async def test_problems_name_their_line(tmp_path):
    async with FakeCog(properties=PROPERTIES) as cog, open_app(tmp_path, cog, **CACHE) as client:
        wrong = [Line(4, {"txt": "a"}), Line(5, {"text": "a", "temperature": 0.5}), Line(6, problem="bad")]
        new, _, problems = await precomputed(client, [*lines_of("a"), *wrong], concurrency=1)
        assert (new, [problem.number for problem in problems]) == (1, [4, 5, 6])
        assert "is not an input of this model; it has text, temperature" in problems[0].problem
        assert "only greedy answers are" in problems[1].problem
        cog.end = {"status": "failed", "error": "the model is tired"}
        _, _, [problem] = await precomputed(client, lines_of("b"))
        assert (problem.number, problem.problem) == (1, "the model is tired")


async def test_no_more_than_asked_run_at_once_and_full_gateways_and_slow_answers_are_waited_for(tmp_path):
    async with (
        FakeCog(held=True, properties=PROPERTIES) as cog,
        open_app(tmp_path, cog, max_active=3, **CACHE) as client,
        asyncio.TaskGroup() as group,
    ):
        refused, polled = [], []

        async def shorten(request):
            polled.append(request.url.path.startswith("/v1/predictions/"))
            if "prefer" in request.headers:
                request.headers["Prefer"] = "wait=1"

        async def watch(response):
            refused.append(response.status_code == 429)

        client.event_hooks = {"request": [shorten], "response": [watch]}
        task = group.create_task(precomputed(client, lines_of(*"abcdef"), concurrency=3))
        await until(lambda: len(cog.asked) == 3 and any(polled))
        full = group.create_task(precomputed(client, lines_of("g")))
        await until(lambda: any(refused))
        assert (full.done(), len(cog.asked)) == (False, 3)
        cog.gate.set()
        assert (await task, await full) == ((6, 0, []), (1, 0, []))


@pytest.mark.parametrize(
    ("settings", "host", "status", "message"),
    [
        ({}, "localhost", "READY", "has no cache of answers; start it with GATEWAY_CACHE_MB"),
        ({"keys": "required", **CACHE}, "localhost", "READY", "asks for an API key"),
        (CACHE, "evil.example", "READY", r"not called 'evil\.example'.* GATEWAY_HOSTS"),
        (CACHE, "localhost", "STARTING", "no Cog server is ready: its health check says STARTING"),
    ],
)
async def test_an_unusable_gateway_is_refused_before_any_prediction(tmp_path, settings, host, status, message):
    make_keys(tmp_path)
    async with FakeCog() as cog:
        cog.status = status
        async with open_app(tmp_path, cog, **settings) as client:
            client.headers["Host"] = host
            with pytest.raises(GatewayUnusableError, match=message):
                await precomputed(client, lines_of("a"))
        assert cog.asked == []


def test_a_gateway_that_is_away_and_a_file_that_is_missing_are_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "nonsense://proxy")  # which is not used
    file = tmp_path / "inputs.jsonl"
    file.write_text('{"text": "a"}\n')
    away = CliRunner().invoke(app, [str(file), "--server", "http://127.0.0.1:9"])
    assert (away.exit_code, "http://127.0.0.1:9 cannot be reached" in away.output) == (2, True)
    missing = CliRunner().invoke(app, [str(tmp_path / "none.jsonl")])
    unwrapped = "".join(word for word in missing.output.split() if word != "│")
    assert (missing.exit_code, "none.jsonl" in unwrapped) == (2, True)


@pytest.mark.server
def test_a_real_server_s_answers_are_precomputed_once(cog, tmp_path):
    file = tmp_path / "inputs.jsonl"
    inputs = [{"nlq": f"question {number}", "cols": "a, b"} for number in range(5)]
    file.write_text("".join(json.dumps(one) + "\n" for one in inputs))
    settings = {"CACHE_MB": 1, "WEIGHTS_DIGEST": "d" * 64}
    with GatewayServer([cog.url], tmp_path, **settings) as gateway:
        for counts in ("5 new, 0 already cached, 0 failed", "0 new, 5 already cached, 0 failed"):
            result = CliRunner().invoke(app, [str(file), "--server", gateway.url])
            assert (result.exit_code, counts in result.output) == (0, True), result.output
        listed = gateway.client.get("/v1/predictions").json()["results"]
        first = listed[-1]
        [copy] = [one for one in listed if one["metrics"].get("cached_from") == first["id"]]
        assert (copy["output"], copy["logs"]) == (first["output"], first["logs"])
        assert copy["metrics"]["token_trace"] == first["metrics"]["token_trace"]
        page = gateway.client.get(f"/p/{copy['id']}")
        assert (page.status_code, "token_trace" in page.text) == (200, True)
        file.write_text(json.dumps({"nlq": " ", "cols": "a"}))
        result = CliRunner().invoke(app, [str(file), "--server", gateway.url])
        assert (result.exit_code, "line 1: " in result.output, "1 failed" in result.output) == (1, True, True)
