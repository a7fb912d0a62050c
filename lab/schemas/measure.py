"""Walks instances of real schemas through the grammars of the schema task and of chat, token by token.

A line of the sample is `{"id", "set", "schema", "tests": [{"data", "valid"}]}`, as MaskBench's data of jsonschemabench
have it: `valid` says whether the instance is one of the schema.
"""

from __future__ import annotations

import json
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar import answer_checks, check_constraint
from serving.grammar.compiler import GrammarCompiler
from serving.grammar.grammar_state import GrammarState
from serving.grammar.schema_tree import walk
from serving.text import Tokenizer, num_logits
from serving.types import FinishReason
from tasks.bounds import narrowed, schema_constraint
from tasks.chat.inputs import read_answer_schema
from tasks.errors import OutputError, TaskError
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR, JsonReader
from tasks.json_text import write_answer
from tasks.schema.task import answer_constraint

_PLACE: Final = re.compile(r" at (#\S*?)[:;]? ")
_QUOTED: Final = re.compile(r"""["'`“].*?["'`”]|\d+""")
_SHOWN: Final = 40  # ids of each kind in the result
_COMPILE_TIMES: Final = 3  # a compilation that takes over `_SLOW_SECONDS` is repeated, and the least time counts
_SLOW_SECONDS: Final = 0.04
_MOST_OTHERS: Final = 64  # allowed tokens among which another one is looked for


def _of_schema_task(schema: Any) -> JsonSchemaConstraint:
    return answer_constraint(schema, ITEM_SEPARATOR, KEY_SEPARATOR)


def _of_chat(schema: Any) -> JsonSchemaConstraint:
    given = read_answer_schema({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
    assert given is not None, "a schema is no free text"
    return schema_constraint(given, ITEM_SEPARATOR, KEY_SEPARATOR)


TASKS: Final[dict[str, Callable[[Any], JsonSchemaConstraint]]] = {"schema": _of_schema_task, "chat": _of_chat}


@dataclass
class Tally:
    """What was seen of one task. Times are in seconds of the processor."""

    schemas: int = 0
    accepted: int = 0
    passed: int = 0  # accepted, all valid instances let through, no invalid one
    valid: int = 0  # instances of accepted schemas
    valid_let_through: int = 0
    valid_outside_narrowing: int = 0  # refused, because they are no instances of the narrowed schema either
    valid_in_other_order: int = 0  # refused, and let through with their keys in the schema's order
    other_tokens: int = 0  # let through, with other tokens than the tokenizer's where llguidance forces a text
    checked: int = 0  # accepted, and answers are checked besides the grammar
    invalid: int = 0
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)
    accept_seconds: list[float] = field(default_factory=list)  # of tokens of answers that are checked
    refusals: Counter[str] = field(default_factory=Counter)  # by keyword
    refused: dict[str, str] = field(default_factory=dict)  # schema id → message
    valid_refused: dict[str, str] = field(default_factory=dict)
    invalid_accepted: dict[str, str] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """The figures, with percentages and times in ms and µs."""
        return {
            "schemas": self.schemas,
            "accepted": self.accepted,
            "accepted_percent": round(100 * self.accepted / self.schemas, 1),
            "passed": self.passed,
            "passed_percent": round(100 * self.passed / self.schemas, 1),
            "checked besides the grammar": self.checked,
            "valid instances": self.valid,
            "let through": self.valid_let_through,
            "refused as the narrowed schema does": self.valid_outside_narrowing,
            "refused for the order of keys": self.valid_in_other_order,
            "refused, valid": len(self.valid_refused),
            "let through with other tokens": self.other_tokens,
            "invalid instances": self.invalid,
            "invalid accepted": len(self.invalid_accepted),
            "compile_ms": _quantiles(self.compile_seconds, 1e3),
            "mask_us": _quantiles(self.mask_seconds, 1e6),
            "accept_checked_us": _quantiles(self.accept_seconds, 1e6),
            "refusals": dict(self.refusals.most_common()),
            "valid_refused": dict(list(self.valid_refused.items())[:_SHOWN]),
            "invalid_accepted": dict(list(self.invalid_accepted.items())[:_SHOWN]),
        }


class Measurement:
    """Walks through the instances of schemas with the tokenizer of a checkpoint."""

    def __init__(self, weights: Path) -> None:
        self._tokenizer = Tokenizer.from_dir(weights)
        vocab_size = num_logits(weights) or self._tokenizer.vocab_size
        self._compiler = GrammarCompiler(self._tokenizer, vocab_size=vocab_size, cache_size=1, cache_seconds=0)
        self._compiler.warm_up()
        self._mask = np.zeros(-(-vocab_size // 32), np.int32)

    def run(self, lines: Iterable[dict[str, Any]], task: str) -> Tally:
        """The tally of a task; `task` is one of `TASKS`."""
        tally = Tally()
        for line in lines:
            self._measure(line, TASKS[task], tally)
        return tally

    def _measure(self, line: dict[str, Any], make: Callable[[Any], JsonSchemaConstraint], tally: Tally) -> None:
        tally.schemas += 1
        seconds: list[float] = []
        while len(seconds) < _COMPILE_TIMES and (not seconds or min(seconds) > _SLOW_SECONDS):
            check_constraint.cache_clear()
            self._compiler.clear()
            start = _processor_seconds()
            try:
                constraint, reason = make(line["schema"]), None
                self._compiler.compile(constraint)
            except (GrammarError, TaskError) as error:
                reason = str(error)
            seconds.append(_processor_seconds() - start)
        tally.compile_seconds.append(min(seconds))
        if reason is not None:
            tally.refused[line["id"]] = reason
            tally.refusals[keyword(reason)] += 1
            return
        tally.accepted += 1
        tally.checked += answer_checks(constraint) is not None
        wrong = 0
        for index, test in enumerate(line["tests"]):
            name, value = f"{line['id']}[{index}]", test["data"]
            reason = self._refusal(constraint, value, tally)
            if test["valid"]:
                tally.valid += 1
                if reason is None:
                    tally.valid_let_through += 1
                elif _is_outside(line["schema"], value):
                    tally.valid_outside_narrowing += 1
                elif self._refusal(constraint, in_order(line["schema"], value), tally) is None:
                    tally.valid_in_other_order += 1
                else:
                    tally.valid_refused[name] = reason
                    wrong += 1
            else:
                tally.invalid += 1
                if reason is None:
                    tally.invalid_accepted[name] = json.dumps(value)[:200]
                    wrong += 1
        tally.passed += not wrong

    def _refusal(self, constraint: JsonSchemaConstraint, value: Any, tally: Tally) -> str | None:
        """Why an answer cannot be this value; None if it can."""
        state: GrammarState = self._compiler.compile(constraint)
        text = write_answer(value)
        is_checked = answer_checks(constraint) is not None
        rest, is_usual = text.encode(errors="replace"), True
        tokens = self._tokenizer.encode(text, add_bos=False)
        try:
            while rest:
                token = tokens.pop(0)
                start = time.thread_time()
                state.fill_bitmask(self._mask)
                tally.mask_seconds.append(time.thread_time() - start)
                start = time.thread_time()
                is_accepted = self._allows(token) and state.accept([token]) == 1
                if is_checked:
                    tally.accept_seconds.append(time.thread_time() - start)
                if not is_accepted:
                    found = self._other_token(state, rest)  # where llguidance forces a text, it forces its own tokens
                    if found is None:
                        return f"refused before {rest[:60].decode(errors='replace')!r}"
                    token, is_usual = found, False
                rest = rest[len(self._tokenizer.token_bytes(token)) :]
                if not is_usual:
                    tokens = self._tokenizer.encode(rest.decode(errors="replace"), add_bos=False)
            if not state.is_complete and state.accept([min(self._tokenizer.eos_token_ids)]) != 1:
                return "refused at the end"
            tally.other_tokens += not is_usual
            reader = JsonReader(constraint)
            reader.push(text)
            reader.finish(FinishReason.STOP)
        except (GrammarError, OutputError) as error:
            return str(error)
        return None

    def _allows(self, token: int) -> bool:
        return bool(self._mask[token >> 5] >> (token & 31) & 1)

    def _other_token(self, state: GrammarState, rest: bytes) -> int | None:
        """A shorter token with which the rest of a text begins, if the state accepts one."""
        allowed = np.flatnonzero(np.unpackbits(self._mask.view(np.uint8), bitorder="little"))
        if len(allowed) > _MOST_OTHERS:
            return None
        texts = {int(token): self._tokenizer.token_bytes(int(token)) for token in allowed}
        fitting = [token for token, text in texts.items() if text and rest.startswith(text)]
        longest_first = sorted(fitting, key=lambda token: -len(texts[token]))
        return next((token for token in longest_first if state.accept([token]) == 1), None)


def in_order(schema: Any, value: Any) -> Any:
    """The value with the keys of its objects in the order in which the schema first names them."""
    names: dict[str, int] = {}
    for _, node in walk(schema):
        for name in node["properties"] if isinstance(node.get("properties"), dict) else ():
            names.setdefault(name, len(names))

    def sorted_value(part: Any) -> Any:
        if isinstance(part, list):
            return [sorted_value(item) for item in part]
        if isinstance(part, dict):
            return {key: sorted_value(part[key]) for key in sorted(part, key=lambda key: names.get(key, len(names)))}
        return part

    return sorted_value(value)


def _processor_seconds() -> float:
    """The processor time of this process and of those that compile for it, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    pids = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    running = [file.read_text().split()[0] for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(int, running)) / 1e9


def keyword(message: str) -> str:
    """The kind of a refusal: the last keyword of the pointer that the message has, and the message without values."""
    found = _PLACE.search(message)
    names = [name for name in found[1].split("/") if name and not name.isdecimal()] if found else []
    rest = message.partition(found[0])[2] if found else message
    return f"{names[-1] if len(names) > 1 else '#'}: {_QUOTED.sub('…', rest)[:70]}"


def _is_outside(schema: Any, value: Any) -> bool:
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema, dict):
        return False
    kept = narrowed(schema)
    try:
        return not validator_for(kept, Draft202012Validator)(kept).is_valid(value)
    except Exception:  # the library fails on this schema
        return False


def _quantiles(seconds: list[float], unit: float) -> dict[str, float]:
    values = np.array(seconds or [0.0]) * unit
    return {
        "p50": round(float(np.quantile(values, 0.5)), 1),
        "p99": round(float(np.quantile(values, 0.99)), 1),
        "max": round(float(values.max()), 1),
    }
