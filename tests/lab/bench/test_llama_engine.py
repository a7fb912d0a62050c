"""What the benchmark asks of llama.cpp's server and reads in its stream; the server is a fake that plays a script."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from lab.bench.llama_engine import LlamaEngine
from serving.constraints import JsonSchemaConstraint, LarkConstraint
from serving.errors import EngineDeadError, InvalidRequestError
from serving.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams

LAST: dict[str, Any] = {
    "content": "}",
    "stop": True,
    "stop_type": "eos",
    "tokens_evaluated": 40,
    "tokens_predicted": 12,
    "timings": {"draft_n": 9, "draft_n_accepted": 5, "cache_n": 30},
}


class _Script(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []
    status: ClassVar[int] = 200
    chunks: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()
        for chunk in self.chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def engine() -> Iterator[LlamaEngine]:
    server = HTTPServer(("127.0.0.1", 0), _Script)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Script.asked, _Script.status, _Script.chunks = [], 200, []
    found = LlamaEngine(subprocess.Popen([sys.executable, "-c", "input()"]), f"http://127.0.0.1:{server.server_port}")
    yield found
    found.close()
    server.shutdown()
    server.server_close()


def answer(engine: LlamaEngine, constraint: Any = None, **sampling: Any) -> list[GenerationOutput]:
    async def run() -> list[GenerationOutput]:
        request = GenerationRequest("r", (1, 2, 3), SamplingParams(**sampling), constraint)
        return [output async for output in engine.generate(request)]

    return asyncio.run(run())


def test_a_request_is_asked_with_its_schema_and_its_passes_are_counted(engine: LlamaEngine) -> None:
    _Script.chunks = [{"content": "{", "stop": False}, LAST]
    schema = {"type": "object"}
    outputs = answer(engine, JsonSchemaConstraint(json.dumps(schema)), max_tokens=50)
    (body,) = _Script.asked
    assert (body["prompt"], body["n_predict"], body["json_schema"]) == ([1, 2, 3], 50, schema)
    assert body["temperature"] == 0 and not body["ignore_eos"]
    assert "".join(one.text for one in outputs) == "{}" and outputs[-1].finish_reason is FinishReason.STOP
    metrics = outputs[-1].metrics
    assert metrics is not None and metrics.model_passes == 12 - 5  # an accepted draft needs no pass of its own
    assert (metrics.input_token_count, metrics.cached_token_count, metrics.draft_token_count) == (40, 30, 9)


def test_free_text_of_a_fixed_length_ends_by_its_limit(engine: LlamaEngine) -> None:
    _Script.chunks = [{**LAST, "stop_type": "limit", "timings": {}}]
    (output,) = answer(engine, max_tokens=12, min_tokens=12)
    assert _Script.asked[0]["ignore_eos"] and "json_schema" not in _Script.asked[0]
    assert output.finish_reason is FinishReason.LENGTH
    assert output.metrics is not None and output.metrics.model_passes == 12


def test_what_llama_cpp_is_not_asked_for_is_refused(engine: LlamaEngine) -> None:
    with pytest.raises(InvalidRequestError, match="JSON schemas only"):
        answer(engine, LarkConstraint("start: /a+/"), max_tokens=5)
    with pytest.raises(InvalidRequestError, match="temperature"):
        answer(engine, max_tokens=5, temperature=0.5)
    assert not _Script.asked


def test_a_refusal_a_failure_and_a_cut_stream_are_errors(engine: LlamaEngine) -> None:
    _Script.status = 400
    with pytest.raises(InvalidRequestError, match="refused"):
        answer(engine, max_tokens=5)
    _Script.status, _Script.chunks = 200, [{"error": "out of memory"}]
    with pytest.raises(EngineDeadError, match="out of memory"):
        answer(engine, max_tokens=5)
    _Script.chunks = [{"content": "{", "stop": False}]
    with pytest.raises(EngineDeadError, match="last line"):
        answer(engine, max_tokens=5)
