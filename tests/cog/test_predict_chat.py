"""The predict.py of chat packages, with a fake engine and without a server."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.package.signature import read_inputs
from serving.engines.fake.engine import FakeEngine
from serving.errors import ContextLengthError, InvalidRequestError
from serving.types import GenerationRequest
from tasks.chat.inputs import ChatInputs
from tasks.chat.predict import Predictor
from tasks.errors import InputError
from tests.cog.tiny_weights import make_tiny_weights

TEMPLATES = Path(__file__).parents[1] / "serving" / "text" / "templates"
HI = {"role": "user", "content": "Hi <|im_end|>"}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


class RecordingPredictor(Predictor):
    """Keeps the metrics that Cog would get."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def record_metric(self, key: str, value: Any, mode: str = "replace") -> None:
        self.metrics[key] = value

    async def chunks(self, **inputs: Any) -> list[str]:
        """All that is streamed, with the defaults that Cog fills in."""
        parameters = inspect.signature(self.predict).parameters
        defaults = {name: parameter.default.default for name, parameter in parameters.items()}
        return await asyncio.to_thread(list, await self.predict(**{**defaults, **inputs}))

    def answers(self, text: str, **options: Any) -> list[GenerationRequest]:
        """Make the engine generate this text; returns the requests that it gets."""
        self.model.engine.close()
        requests: list[GenerationRequest] = []
        engine = FakeEngine(self.model.tokenizer, answer=lambda prompt: text, **options)
        generate = engine.generate
        engine.generate = lambda request: requests.append(request) or generate(request)
        self.model.engine = engine
        return requests


@pytest.fixture
def predictor(tmp_path, monkeypatch):
    task = {"task": "chat", "name": "tiny", "defaults": {"temperature": 0, "max_tokens": 100}}
    files = {"chat_template.jinja": (TEMPLATES / "smollm2.jinja").read_text("utf-8")}
    for name, value in make_tiny_weights(tmp_path, task=task, files=files).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ENGINE", "fake")
    predictor = RecordingPredictor()
    predictor.setup()
    yield predictor
    predictor.model.engine.close()
    gc.unfreeze()


def test_cog_reads_every_input_of_the_task_and_requires_none():
    schema = read_inputs(Path(inspect.getfile(Predictor)).read_text("utf-8"), "Predictor")
    assert set(schema["properties"]) == {*ChatInputs.model_fields, "adapter"}
    assert schema["required"] == []
    assert schema["properties"]["messages"]["type"] == "array"
    assert [variant["type"] for variant in schema["properties"]["stop_sequences"]["anyOf"]] == ["array", "string"]


async def test_the_answer_to_a_conversation_is_streamed(predictor):
    requests = predictor.answers(" Hello there, you.")
    chunks = await predictor.chunks(messages=[HI], seed=0)
    assert "".join(chunks) == " Hello there, you."
    assert len(chunks) > 3
    assert "" not in chunks
    sampling = requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.top_k, sampling.seed) == (0, 100, 50, 0)
    assert predictor.metrics["output_token_count"] > 3
    # <|im_start|> and <|im_end|> of the default system message, of this one, and the start of the answer
    assert [i for i in requests[0].prompt_token_ids if i in (0, 1)] == [1, 0, 1, 0, 1]


async def test_text_truncated_by_max_tokens_is_an_answer(predictor):
    predictor.answers("one two three four")
    answer = "".join(await predictor.chunks(prompt="count", max_tokens=3))
    assert answer
    assert "one two three four".startswith(answer)


async def test_a_stop_sequence_with_a_comma_ends_the_answer(predictor):
    predictor.answers("red, green, blue")
    assert "".join(await predictor.chunks(prompt="colours", stop_sequences=[", b"])) == "red, green"
    assert "".join(await predictor.chunks(prompt="colours", stop_sequences=r"x,\, g")) == "red"


async def test_an_answer_under_a_schema_is_json_of_that_schema(predictor):
    """Even if the model would generate something else."""
    predictor.answers("Sure! Here it is: {}")
    answer = "".join(await predictor.chunks(prompt="ok?", json_schema=SCHEMA))
    assert isinstance(json.loads(answer)["ok"], bool)


async def test_truncated_json_is_an_error_that_names_max_tokens(predictor):
    predictor.answers('{"ok": true}')
    with pytest.raises(
        InvalidRequestError, match=r"^max_tokens: the answer was not complete after 2 tokens; give more"
    ):
        await predictor.chunks(prompt="ok?", json_schema=SCHEMA, max_tokens=2)


async def test_metrics_say_why_an_answer_ended(predictor):
    predictor.answers("one two three four")
    await predictor.chunks(prompt="count")
    assert predictor.metrics["finish_reason"] == "stop"
    await predictor.chunks(prompt="count", max_tokens=3)
    assert predictor.metrics["finish_reason"] == "length"
    predictor.answers('{"ok": true}')
    with pytest.raises(InvalidRequestError):
        await predictor.chunks(prompt="ok?", json_schema=SCHEMA, max_tokens=2)
    assert (predictor.metrics["finish_reason"], predictor.metrics["error_type"]) == ("length", "InvalidRequestError")


async def test_logprobs_are_a_metric_with_one_entry_for_each_token(predictor):
    predictor.answers("é one")
    answer = "".join(await predictor.chunks(prompt="count", logprobs=2))
    entries = predictor.metrics["logprobs"]
    assert len(entries) == predictor.metrics["output_token_count"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == answer == "é one"
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(entries)
    assert all(entry["logprob"] == pytest.approx(math.log(0.5)) for entry in entries)
    predictor.metrics.clear()
    await predictor.chunks(prompt="count")
    assert "logprobs" not in predictor.metrics


async def test_metrics_name_the_kind_of_an_error(predictor):
    predictor.answers("x", max_model_len=256)
    for inputs, kind in (
        ({"prompt": "a " * 500}, "ContextLengthError"),
        ({"messages": [{"role": "user"}]}, "InputError"),
        ({"prompt": "a", "json_schema": {"type": "string", "pattern": "(a)\\1"}}, "GrammarError"),
    ):
        with pytest.raises((InputError, InvalidRequestError)):
            await predictor.chunks(**inputs)
        assert predictor.metrics["error_type"] == kind


async def test_wrong_inputs_are_refused_before_the_engine_is_called(predictor):
    requests = predictor.answers("x")
    for inputs, error in (
        ({}, InputError),
        ({"messages": [{"role": "user"}]}, InputError),
        ({"prompt": "a", "tools": [{}]}, InputError),
        ({"prompt": "a\ud83d"}, InvalidRequestError),
    ):
        with pytest.raises(error):
            await predictor.chunks(**inputs)
    assert requests == []


async def test_a_conversation_over_the_context_names_the_inputs(predictor):
    predictor.answers("x", max_model_len=16)
    with pytest.raises(ContextLengthError, match=r"^prompt or messages: .* context 16.* send a shorter conversation"):
        await predictor.chunks(prompt="a " * 50)
