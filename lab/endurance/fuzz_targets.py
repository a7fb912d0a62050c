"""What is fuzzed: for each, random inputs of the usual size and of 64 KiB, and the errors that it promises."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.endurance.chat_package import chat_files
from lab.endurance.own_weights import linked_weights
from lab.endurance.random_inputs import mistaken, mistaken_bytes, text, value
from lab.endurance.stage import Stage
from serving.errors import ServingError, WeightsError
from serving.grammar import check_constraint
from serving.text import Tokenizer, context_length
from serving.types import FinishReason
from serving.weights import WeightsLock
from serving.weights.safetensors_header import read_safetensors_header
from tasks.errors import OutputError, TaskError
from tasks.task import TASK_FILE, Task, create_task

_LONG: Final = 64 * 1024  # bytes of UTF-8
_NAMES: Final = ("role", "content", "type", "text", "properties", "items", "enum", "$ref", "anyOf", "pattern", "", "a")
_MORE_NAMES: Final = (
    "required",
    "minimum",
    "maxItems",
    "const",
    "tool_calls",
    "function",
    "arguments",
    "name",
    "$defs",
)
_COLUMNS: Final = "['duration_ms', \"http.route\", 'error', 'service.name']"
_MESSAGE: Final = {"role": "user", "content": "Hello"}
_ANSWER: Final = (
    '{"breakdowns": ["error"], "calculations": [{"op": "P99", "column": "duration_ms"}], '
    '"filters": [{"column": "error", "op": "=", "value": true}], "limit": 10, "time_range": 3600}'
)
_SCHEMA: Final = (
    '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", 1, null]}, '
    '"c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "maxItems": 3}}, "required": ["a"], '
    '"additionalProperties": false, "$defs": {"d": {"type": "string", "pattern": "^[a-z]{1,9}$"}}}'
)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is fuzzed.

    Args:
        name: for the table.
        valid: a case that must be read.
        make: a random case.
        make_long: a case of 64 KiB.
        read: reads a case.
        promised: errors that may leave it.
    """

    name: str
    valid: Any
    make: Callable[[random.Random], Any]
    make_long: Callable[[random.Random], Any]
    read: Callable[[Any], object]
    promised: tuple[type[Exception], ...]


def targets(stage: Stage) -> list[Target]:
    """All of them, with the small model's tokenizer and files."""
    tokenizer = Tokenizer.from_dir(stage.weights, context_length=context_length(stage.weights))
    honeycomb = create_task(stage.weights, tokenizer)
    folder = stage.subfolder("fuzz")
    chat_settings = linked_weights(stage.weights, folder / "chat", chat_files())
    chat = create_task(Path(chat_settings["WEIGHTS_DIR"]), tokenizer)
    users, files = (TaskError, ServingError), _Files(stage, folder)
    return [
        Target(
            "nlq",
            "count",
            text,
            lambda rng: _repeated(text(rng)),
            lambda nlq: honeycomb.prepare({"nlq": nlq, "cols": "a"}),
            users,
        ),
        Target(
            "cols",
            _COLUMNS,
            lambda rng: mistaken(rng, _COLUMNS) if rng.random() < 0.7 else text(rng),
            lambda rng: _repeated(mistaken(rng, _COLUMNS)),
            lambda cols: honeycomb.prepare({"nlq": "a", "cols": cols}),
            users,
        ),
        Target("chat messages", {"messages": [_MESSAGE]}, _messages, _long_messages, chat.prepare, users),
        Target("schemas", _SCHEMA, _schema, _long_schema, lambda schema: _compile(chat, schema), users),
        Target(
            "output parser",
            (0.5, _ANSWER),
            lambda rng: (rng.random(), mistaken(rng, _ANSWER) if rng.random() < 0.8 else text(rng)),
            lambda rng: (rng.random(), _repeated(mistaken(rng, _ANSWER))),
            lambda case: _read_answer(honeycomb, *case),
            (OutputError,),
        ),
        Target("weights.lock", files.valid_lock, files.lock, files.long_lock, files.read_lock, (WeightsError,)),
        Target(
            "task.json",
            files.valid_task,
            files.task,
            files.long_task,
            lambda data: files.read_task(data, tokenizer),
            users,
        ),
        Target(
            "safetensors header",
            files.valid_header,
            files.header,
            files.long_header,
            files.read_header,
            (WeightsError,),
        ),
    ]


def _repeated(part: str) -> str:
    data = (part or "a").encode(errors="surrogatepass")
    return (data * (_LONG // len(data) + 1))[:_LONG].decode(errors="ignore")


def _messages(rng: random.Random) -> dict[str, Any]:
    def message() -> Any:
        if rng.random() < 0.3:
            return value(rng, (*_NAMES, *_MORE_NAMES))
        found = {"role": rng.choice(("user", "assistant", "system", "tool", "", text(rng, 3))), "content": text(rng)}
        return found | ({rng.choice(_MORE_NAMES): value(rng, _NAMES)} if rng.random() < 0.3 else {})

    inputs: dict[str, Any] = {"messages": [message() for _ in range(rng.randrange(5))]}
    return inputs | (
        {rng.choice(("prompt", "stop_sequences", "tools", "")): value(rng, _NAMES)} if rng.random() < 0.3 else {}
    )


def _long_messages(rng: random.Random) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": _repeated(text(rng))}]}


def _schema(rng: random.Random) -> Any:
    return value(rng, (*_NAMES, *_MORE_NAMES)) if rng.random() < 0.3 else mistaken(rng, _SCHEMA)


def _long_schema(rng: random.Random) -> Any:
    return {"enum": [f"{number} {text(rng, 3)}" for number in range(64)] * 40}


def _compile(chat: Task, schema: Any) -> None:
    """As the engine does with a request's constraint, in a process of its own."""
    constraint = chat.prepare({"prompt": "a", "json_schema": schema}).constraint
    if constraint is not None:
        check_constraint(constraint)


def _read_answer(task: Task, share: float, answer: str) -> str:
    reader = task.prepare({"nlq": "a", "cols": _COLUMNS}).reader
    cut = int(share * len(answer))
    shown = reader.push(answer[:cut]) + reader.push(answer[cut:])
    return shown + reader.finish(FinishReason.STOP)


class _Files:
    """Cases that are files: the real one with mistakes, written and read again."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.valid_lock = Path(stage.settings["WEIGHTS_LOCK"]).read_bytes()
        self.valid_task = (stage.weights / TASK_FILE).read_bytes()
        with (stage.weights / "model.safetensors").open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            file.seek(0)
            self._header = file.read(8 + size)
        # A header of few small tensors is read in less time, so that there can be more cases.
        tensors = [one for one in json.loads(self._header[8:]).items() if one[0] != "__metadata__"]
        few, end = {}, 0
        for name, tensor in sorted(tensors, key=lambda item: item[1]["data_offsets"][1] - item[1]["data_offsets"][0])[
            :6
        ]:
            begin, end = end, end + tensor["data_offsets"][1] - tensor["data_offsets"][0]
            few[name] = {**tensor, "data_offsets": [begin, end]}
        text = json.dumps(few).encode()
        self._short_header, self._data = len(text).to_bytes(8, "little") + text, bytes(end)
        self.valid_header = self._short_header + self._data
        self._folder = folder

    def lock(self, rng: random.Random) -> bytes:
        return mistaken_bytes(rng, self.valid_lock)

    def long_lock(self, rng: random.Random) -> bytes:
        content = json.loads(self.valid_lock)
        files = content["weights"][0]["files"]
        content["weights"][0]["files"] = [{**files[0], "path": f"{number:05d}{rng.random()}"} for number in range(350)]
        return json.dumps(content).encode()

    def read_lock(self, data: bytes) -> object:
        return WeightsLock.load(self._written("weights.lock", data))

    def task(self, rng: random.Random) -> bytes:
        return mistaken_bytes(rng, self.valid_task)

    def long_task(self, rng: random.Random) -> bytes:
        return json.dumps({**json.loads(self.valid_task), "name": _repeated(text(rng))}).encode()

    def read_task(self, data: bytes, tokenizer: Tokenizer) -> object:
        return create_task(self._written(TASK_FILE, data).parent, tokenizer)

    def header(self, rng: random.Random) -> bytes:
        return mistaken_bytes(rng, self._short_header) + self._data

    def long_header(self, rng: random.Random) -> bytes:
        return mistaken_bytes(rng, self._header)

    def read_header(self, data: bytes) -> object:
        return read_safetensors_header(self._written("model.safetensors", data))

    def _written(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path
