"""Writes responses, their items and the events of their streams, from what a chat completion would show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pydantic import JsonValue

from gateway.openai.choices import Answer, read_answer
from gateway.openai.error_objects import ApiError, error_object
from gateway.openai.model_inputs import ModelInputs
from gateway.openai.responses.body import FunctionTool, ResponsesBody
from gateway.openai.shapes import ChatShape, Object
from gateway.predictions.prediction import Prediction, Status

PREFIX: Final = "resp_"
_NO_MESSAGES: Final = ({"role": "user", "content": ""},)
_RUNNING: Final = {Status.STARTING: "queued", Status.PROCESSING: "in_progress"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, of which a response shows most again."""

    id: str  # of the prediction
    created_at: int  # as Unix time
    body: ResponsesBody

    @classmethod
    def of(cls, prediction: Prediction, body: ResponsesBody) -> Asked:
        """What was asked of a prediction."""
        return cls(prediction.id, int(datetime.fromisoformat(prediction.created_at).timestamp()), body)

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return PREFIX + self.id

    def shape(self) -> ChatShape:
        """The shape of a chat completion of the same request, from whose parts the items are made."""
        return ChatShape(self.body.chat_body(_NO_MESSAGES).reader, self.id)

    def response(self, status: str, output: list[JsonValue] | None = None, **more: JsonValue) -> Object:
        """The response with its parameters; `more` are further fields, in place of their defaults."""
        body = self.body
        tools: list[JsonValue] = [_tool(tool) for tool in body.tools or []]
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        default_choice = "auto" if tools else "none"
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "model": body.model,
            "output": output or [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.is_stored,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": default_choice if body.tool_choice is None else body.kept["tool_choice"],
            "tools": tools,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "metadata": dict(body.metadata or {}),
            **more,
        }

    def finished(self, answer: Answer, output: list[JsonValue]) -> Object:
        """The response with its answer."""
        is_cut = answer.finish_reason == "length"
        total = answer.prompt_tokens + answer.completion_tokens
        usage: Object = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        reason: JsonValue = {"reason": "max_output_tokens"} if is_cut else None
        return self.response("incomplete" if is_cut else "completed", output, usage=usage, incomplete_details=reason)

    def failed(self, error: ApiError) -> Object:
        """The response of a prediction that failed or was cancelled."""
        if error.code == "canceled":
            return self.response("cancelled")
        return self.response("failed", error={"code": error_code(error), "message": error.detail})

    def whole(self, answer: Answer) -> Object:
        """The response with its answer, from a chat completion's choice."""
        items = _Items(self.id)
        choice = self.shape().whole(0, answer)
        events = [*items.add(_with_numbers(choice["message"])), *items.end(answer, choice["logprobs"])]
        assert events, "each answer has an item"
        return self.finished(answer, items.output)

    def shown(self, prediction: Prediction) -> Object:
        """The response as it is now."""
        if not prediction.status.is_final:
            return self.response(_RUNNING[prediction.status])
        try:
            return self.whole(read_answer(prediction, ModelInputs({}, dict(prediction.input))))
        except ApiError as error:
            return self.failed(error)


def response_of_item(item_id: str) -> str:
    """The id of the response whose answer would have the item of this id."""
    return PREFIX + item_id.partition("_")[2].rpartition("o")[0]


class Events:
    """Writes the events of one stream, which have numbers from 0 on, without those up to `starting_after`."""

    def __init__(self, asked: Asked, starting_after: int | None = None) -> None:
        self._asked = asked
        self._shape = asked.shape()
        self._items = _Items(asked.id)
        self._after = -1 if starting_after is None else starting_after
        self._number = -1

    @property
    def has_begun(self) -> bool:
        """Whether there was an event."""
        return self._number >= 0

    def begin(self) -> bytes:
        """The events before the answer."""
        started = self._asked.response("in_progress")
        events = self._write({"type": f"response.{name}", "response": started} for name in ("created", "in_progress"))
        return events + self._part(self._shape.first(0))

    def piece(self, text: str) -> bytes:
        """The events for new text."""
        return self._part(self._shape.piece(0, text))

    def end(self, answer: Answer) -> bytes:
        """The events of the end."""
        last = self._shape.last(0, answer)
        written = self._part(last) + self._write(self._items.end(answer, last["logprobs"]))
        response = self._asked.finished(answer, self._items.output)
        return written + self._write([{"type": f"response.{response['status']}", "response": response}])

    def fail(self, error: ApiError) -> bytes:
        """The events of a failure. OpenAI's clients raise at the first, of which they read `error`."""
        parts: Object = {"code": error_code(error), "message": error.detail, "param": error.param}
        told: Object = {"type": "error", **parts, "error": error_object(error)["error"]}
        return self._write([told, {"type": "response.failed", "response": self._asked.failed(error)}])

    def _part(self, choice: Object | None) -> bytes:
        return b"" if choice is None else self._write(self._items.add(choice["delta"]))

    def _write(self, events: Iterator[Object] | list[Object]) -> bytes:
        written = []
        for event in events:
            self._number += 1
            if self._number > self._after:
                text = json.dumps(event | {"sequence_number": self._number}, separators=(",", ":"))
                written.append(f"event: {event['type']}\ndata: {text}\n\n".encode())
        return b"".join(written)


@dataclass(slots=True)
class _Items:
    """The items of an answer, which grow by the deltas of a chat completion."""

    own_id: str
    output: list[JsonValue] = field(default_factory=list)
    """The items that are complete."""
    _open: Object | None = None
    _call: JsonValue = None  # the index of the open call among the answer's calls

    def add(self, delta: JsonValue) -> Iterator[Object]:
        """The events of one delta, or of a whole message."""
        assert isinstance(delta, dict), "a delta is an object"
        if delta.get("content"):
            if self._open is None or self._open["type"] != "message":
                yield from self._close("completed")
                yield from self._begin_message()
            yield self._told("response.output_text.delta", content_index=0, delta=delta["content"], logprobs=[])
            assert self._open is not None, "it was begun"
            self._open["text"] = f"{self._open['text']}{delta['content']}"
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            assert isinstance(call, dict) and isinstance(call["function"], dict), "a call is an object with a function"
            if self._open is None or self._open["type"] != "function_call" or call["index"] != self._call:
                yield from self._close("completed")
                self._call = call["index"]
                own = {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
                yield self._begin("function_call", **own)
            assert self._open is not None, "it was begun"
            if more := call["function"].get("arguments"):
                self._open["arguments"] = f"{self._open['arguments']}{more}"
                yield self._told("response.function_call_arguments.delta", delta=more)

    def end(self, answer: Answer, logprobs: JsonValue) -> Iterator[Object]:
        """The events that complete the last item, which an empty answer has as well."""
        if self._open is None and not self.output:
            yield from self._begin_message()
        content = logprobs.get("content") if isinstance(logprobs, dict) else []
        yield from self._close("incomplete" if answer.finish_reason == "length" else "completed", content)

    def _begin(self, kind: str, **parts: JsonValue) -> Object:
        prefix = "msg" if kind == "message" else "fc"
        self._open = {"id": f"{prefix}_{self.own_id}o{len(self.output)}", "type": kind, **parts}
        shown = {name: value for name, value in self._open.items() if name != "text"} | {"status": "in_progress"}
        if kind == "message":
            shown["content"] = []
        return {"type": "response.output_item.added", "output_index": len(self.output), "item": shown}

    def _begin_message(self) -> Iterator[Object]:
        yield self._begin("message", role="assistant", text="")
        yield self._told("response.content_part.added", content_index=0, part=_text_part("", []))

    def _close(self, status: str, logprobs: JsonValue = None) -> Iterator[Object]:
        if self._open is None:
            return
        item = {**self._open, "status": status}
        if item["type"] == "message":
            text, logprobs = item.pop("text"), logprobs or []
            yield self._told("response.output_text.done", content_index=0, text=text, logprobs=logprobs)
            part = _text_part(text, logprobs)
            yield self._told("response.content_part.done", content_index=0, part=part)
            item["content"] = [part]
        else:
            own = {"name": item["name"], "arguments": item["arguments"]}
            yield self._told("response.function_call_arguments.done", **own)
        yield {"type": "response.output_item.done", "output_index": len(self.output), "item": item}
        self.output.append(item)
        self._open = None

    def _told(self, kind: str, **parts: JsonValue) -> Object:
        assert self._open is not None, "the event is of an open item"
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self.output), **parts}


def error_code(error: ApiError) -> str:
    """The code of a failed response, of those that OpenAI's API has."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"


def _text_part(text: JsonValue, logprobs: JsonValue) -> JsonValue:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _tool(tool: FunctionTool) -> Object:
    """A tool with all its fields, which clients read."""
    return {"description": None, "parameters": None, "strict": None} | tool.model_dump(exclude_none=True)


def _with_numbers(message: JsonValue) -> Object:
    """A whole message as one delta: calls have numbers."""
    assert isinstance(message, dict), "a message is an object"
    calls = message.get("tool_calls")
    numbered: list[JsonValue] = [
        {"index": index, **call}
        for index, call in enumerate(calls if isinstance(calls, list) else [])
        if isinstance(call, dict)
    ]
    return {**message, "tool_calls": numbered}
