"""Writes answers as OpenAI's API shows them, whole and in chunks, to conversations and to prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from gateway.openai.choices import Answer, Logprob
from gateway.openai.tool_calls import AnswerReader, CallPart
from gateway.upstream.model_info import ModelInfo

Object = dict[str, JsonValue]


class ChatShape:
    """Writes the choices of a chat completion.

    Args:
        make_reader: makes the reader of one answer.
        call_id: the beginning of the calls' ids, before the choice's number.
    """

    prefix, name, chunk_name = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, make_reader: Callable[[], AnswerReader], call_id: str) -> None:
        self._make_reader = make_reader
        self._call_id = call_id
        self._readers: dict[int, AnswerReader] = {}  # of the choices that are streamed

    def whole(self, index: int, answer: Answer) -> Object:
        """A choice with its answer. Of chosen calls, one that was cut is left out: nobody could read its arguments."""
        reader, is_complete = self._make_reader(), answer.finish_reason == "stop"
        read = [reader.push(answer.text), reader.finish(is_complete=is_complete)]
        calls: dict[int, CallPart] = {}
        for part in (part for _, parts in read for part in parts):
            calls.setdefault(part.index, CallPart(part.index, "", part.name)).arguments += part.arguments
        shown = [self._call(index, call) for call in calls.values() if call.index < reader.calls]
        content = "".join(text for text, _ in read)
        message: Object = {"role": "assistant", "content": content or (None if reader.calls else ""), "refusal": None}
        if shown:
            message["tool_calls"] = [*shown]
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(answer),
            "finish_reason": _reason(answer, reader),
        }

    def first(self, index: int) -> Object:
        """A choice's part in a chunk before its text."""
        self._readers[index] = reader = self._make_reader()
        content, parts = reader.push("")
        message: Object = {"role": "assistant", "content": None if reader.calls else content, "refusal": None}
        return _chat_part(index, message | self._delta(index, "", parts))

    def piece(self, index: int, text: str) -> Object | None:
        """A choice's part in a chunk with new text; None while it would show nothing."""
        delta = self._delta(index, *self._readers[index].push(text))
        return _chat_part(index, delta) if delta else None

    def last(self, index: int, answer: Answer) -> Object:
        """A choice's part in its last chunk: why it ended, and all log probabilities."""
        reader = self._readers[index]
        delta = self._delta(index, *reader.finish(is_complete=answer.finish_reason == "stop"))
        ended = {"logprobs": _chat_logprobs(answer), "finish_reason": _reason(answer, reader)}
        return _chat_part(index, delta) | ended

    def _delta(self, index: int, content: str, parts: Sequence[CallPart]) -> Object:
        """New text, and new text of calls' arguments, with their names the first time that they are known."""
        delta: Object = {"content": content} if content else {}
        if parts:
            delta["tool_calls"] = [{"index": part.index, **self._call(index, part)} for part in parts]
        return delta

    def _call(self, index: int, part: CallPart) -> Object:
        if part.name is None:
            return {"function": {"arguments": part.arguments}}
        call_id = f"call_{self._call_id}{index or ''}" + (f"_{part.index}" if part.index else "")
        return {"id": call_id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}


def _reason(answer: Answer, reader: AnswerReader) -> str:
    return "tool_calls" if reader.calls and answer.finish_reason == "stop" else answer.finish_reason


class CompletionShape:
    """Writes the choices of a completion."""

    prefix, name, chunk_name = "cmpl-", "text_completion", "text_completion"

    def whole(self, index: int, answer: Answer) -> Object:
        """See `ChatShape.whole`."""
        return self.piece(index, answer.text) | self._end(answer)

    def first(self, index: int) -> None:
        """Nothing: a completion's first chunk has its first text."""

    def piece(self, index: int, text: str) -> Object:
        """See `ChatShape.piece`."""
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def last(self, index: int, answer: Answer) -> Object:
        """See `ChatShape.last`."""
        return self.piece(index, "") | self._end(answer)

    def _end(self, answer: Answer) -> Object:
        logprobs = None if answer.logprobs is None else _completion_logprobs(answer.logprobs)
        return {"logprobs": logprobs, "finish_reason": answer.finish_reason}


Shape = ChatShape | CompletionShape


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of an answer have in common.

    Args:
        id: the id of the answer.
        created: the time of the answer, as Unix time.
        model: the model's name as the caller gave it.
        fingerprint: a text that differs for another version of the model.
    """

    id: str
    created: int
    model: str
    fingerprint: str

    def around(self, name: str, choices: Sequence[Object], **more: JsonValue) -> Object:
        """The object with these choices."""
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": [*choices],
            **more,
        }


def model_object(info: ModelInfo) -> Object:
    """The model; its id is the part of its name after the owner, because an id with a slash would be two in a path."""
    owner, name = info.name.split("/")
    created = int(datetime.fromisoformat(info.created_at).timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": owner, "root": info.name, "parent": None}


def encode_chunk(content: Mapping[str, JsonValue]) -> bytes:
    """A server-sent event as OpenAI's streams have it, which has data only."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def _chat_part(index: int, delta: Object) -> Object:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _chat_logprobs(answer: Answer) -> Object | None:
    if answer.logprobs is None:
        return None
    return {"content": [dict(one) for one in answer.logprobs], "refusal": None}


def _completion_logprobs(logprobs: Sequence[Logprob]) -> Object:
    texts = [str(one["token"]) for one in logprobs]
    offsets = [sum(map(len, texts[:number])) for number in range(len(texts))]
    tops = [one["top_logprobs"] for one in logprobs]
    return {
        "tokens": [_token_name(one) for one in logprobs],
        "token_logprobs": [one["logprob"] for one in logprobs],
        "top_logprobs": [
            {_token_name(each): each["logprob"] for each in top if isinstance(each, dict)}
            for top in tops
            if isinstance(top, list)
        ],
        "text_offset": [*offsets],
    }


def _token_name(one: Logprob) -> str:
    r"""The token's text, or for bytes that are not text, as in OpenAI's API, a name such as `bytes:\xe2\x80`.

    The text of those would be the replacement character, the same for many tokens.
    """
    numbers = one["bytes"]
    content = bytes(number for number in numbers if isinstance(number, int)) if isinstance(numbers, list) else b""
    try:
        content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{number:02x}" for number in content)
    return str(one["token"])
