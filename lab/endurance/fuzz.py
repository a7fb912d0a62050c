"""Gives random inputs to everything that reads what callers and models say."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.endurance.own_weights import chat_files, linked_weights
from lab.endurance.random_inputs import mistaken, text, value
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from serving.errors import ServingError
from serving.grammar import check_constraint
from serving.text import Tokenizer, context_length
from serving.types import FinishReason
from tasks.errors import OutputError, TaskError
from tasks.task import Task, create_task

_MILLISECONDS: Final = 50  # for 64 KiB, on a machine that needs these seconds for the reference
_REFERENCE_SECONDS: Final = 0.0017  # an EPYC (Zen 5)
_LONG: Final = 64 * 1024  # bytes of UTF-8
_NAMES: Final = ("role", "content", "type", "text", "properties", "items", "enum", "$ref", "anyOf", "pattern", "", "a")
_MORE: Final = ("required", "minimum", "maxItems", "const", "tool_calls", "function", "arguments", "name", "$defs")
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
        name: its name in the table.
        valid: a case that must be read.
        make: a random case.
        make_long: a case of 64 KiB.
        read: the function that reads a case.
        promised: errors that may leave it.
    """

    name: str
    valid: Any
    make: Callable[[random.Random], Any]
    make_long: Callable[[random.Random], Any]
    read: Callable[[Any], object]
    promised: tuple[type[Exception], ...]


def targets(stage: Stage) -> list[Target]:
    """All targets, with the small model's tokenizer and files."""
    tokenizer = Tokenizer.from_dir(stage.weights, context_length=context_length(stage.weights))
    honeycomb = create_task(stage.weights, tokenizer)
    chat_settings = linked_weights(stage.weights, stage.subfolder("fuzz") / "chat", chat_files())
    chat = create_task(Path(chat_settings["WEIGHTS_DIR"]), tokenizer)
    users = (TaskError, ServingError)
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
    ]


def fuzz(stage: Stage, amounts: Amounts, make_targets: Callable[[Stage], list[Target]] = targets) -> Result:
    """Each target gets random inputs, and long ones; only the errors that it promises may leave it."""
    checks: list[Check] = []
    losses: list[str] = []
    limit = round(_MILLISECONDS * max(1.0, _reference_seconds() / _REFERENCE_SECONDS), 1)
    for target in make_targets(stage):
        rng = random.Random(f"fuzz {target.name}")
        uncaught = [loss for _ in range(amounts.fuzz) if (loss := _try(target, target.make(rng))) is not None]
        slowest = 0.0
        for _ in range(amounts.long_texts):
            case = target.make_long(rng)
            loss, first = _timed(target, case)
            uncaught += [loss] if loss is not None else []
            _, second = _timed(target, case)  # other work may have interrupted the first
            slowest = max(slowest, min(first, second))
        checks.append(Check(f"{target.name}: uncaught errors", len(uncaught), 0))
        checks.append(Check(f"{target.name}: the valid case is refused", int(not _is_read(target)), 0))
        checks.append(Check(f"{target.name}: slowest of 64 KiB", 1000 * slowest, limit, "ms", is_time=True))
        losses += [f"{target.name}: {loss}" for loss in uncaught[:2]]
    return Result(
        checks=tuple(checks),
        about={"cases of each": amounts.fuzz, "of 64 KiB": amounts.long_texts},
        losses=tuple(losses),
    )


def _reference_seconds() -> float:
    """The time of a fixed piece of work of the same kind on this machine: JSON, and words counted in Python."""
    text = json.dumps([{"number": number, "text": f"word {number}"} for number in range(5000)])

    def once() -> float:
        began = time.perf_counter()
        Counter(word for item in json.loads(text) for word in item["text"].split())
        return time.perf_counter() - began

    return min(once() for _ in range(10))


def _is_read(target: Target) -> bool:
    """Whether the valid case is read; where nothing is, mistakes reach no more than the first check."""
    try:
        target.read(target.valid)
    except target.promised:
        return False
    return True


def _timed(target: Target, case: Any) -> tuple[str | None, float]:
    began = time.perf_counter()
    return _try(target, case), time.perf_counter() - began


def _try(target: Target, case: Any) -> str | None:
    """The error that should not have left the target; None if there was none."""
    try:
        target.read(case)
    except target.promised:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return f"{error!r} of {case!r:.300}"
    return None


def _repeated(part: str) -> str:
    data = (part or "a").encode(errors="surrogatepass")
    return (data * (_LONG // len(data) + 1))[:_LONG].decode(errors="ignore")


def _messages(rng: random.Random) -> dict[str, Any]:
    def message() -> Any:
        if rng.random() < 0.3:
            return value(rng, (*_NAMES, *_MORE))
        found = {"role": rng.choice(("user", "assistant", "system", "tool", "", text(rng, 3))), "content": text(rng)}
        return found | ({rng.choice(_MORE): value(rng, _NAMES)} if rng.random() < 0.3 else {})

    inputs: dict[str, Any] = {"messages": [message() for _ in range(rng.randrange(5))]}
    return inputs | (
        {rng.choice(("prompt", "stop_sequences", "tools", "")): value(rng, _NAMES)} if rng.random() < 0.3 else {}
    )


def _long_messages(rng: random.Random) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": _repeated(text(rng))}]}


def _schema(rng: random.Random) -> Any:
    return value(rng, (*_NAMES, *_MORE)) if rng.random() < 0.3 else mistaken(rng, _SCHEMA)


def _long_schema(rng: random.Random) -> Any:
    return {"enum": [f"{number} {text(rng, 3)}" for number in range(64)] * 40}


def _compile(chat: Task, schema: Any) -> None:
    """Compile a request's constraint as the engine does, in a process of its own."""
    constraint = chat.prepare({"prompt": "a", "json_schema": schema}).constraint
    if constraint is not None:
        check_constraint(constraint)


def _read_answer(task: Task, share: float, answer: str) -> str:
    reader = task.prepare({"nlq": "a", "cols": _COLUMNS}).reader
    cut = int(share * len(answer))
    shown = reader.push(answer[:cut]) + reader.push(answer[cut:])
    return shown + reader.finish(FinishReason.STOP)
