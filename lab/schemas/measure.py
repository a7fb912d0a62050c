"""Walks instances of real schemas through the grammars of the schema task and of chat, token by token.

A line of the sample is `{"id", "set", "schema", "tests": [{"data", "valid"}]}`, as the MaskBench data of jsonschemabench
have it: `valid` says whether the instance is one of the schema.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError
from serving.grammar.compiler import GrammarCompiler
from serving.grammar.grammar_state import GrammarState
from serving.text import Tokenizer, num_logits
from serving.types import FinishReason
from tasks.bounds import narrowed
from tasks.chat.inputs import read_answer_schema
from tasks.errors import OutputError, TaskError
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR, JsonReader
from tasks.json_text import write_answer
from tasks.schema.task import answer_constraint

_PLACE: Final = re.compile(r" at (#\S*?)[:;]? ")
_QUOTED: Final = re.compile(r"""["'`“].*?["'`”]|\d+""")
_SHOWN: Final = 40  # ids of each kind in the result


def _of_schema_task(schema: Any) -> JsonSchemaConstraint:
    return answer_constraint(schema, ITEM_SEPARATOR, KEY_SEPARATOR)


def _of_chat(schema: Any) -> JsonSchemaConstraint:
    text = read_answer_schema({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
    assert text is not None, "a schema is no free text"
    return JsonSchemaConstraint(text, ITEM_SEPARATOR, KEY_SEPARATOR)


TASKS: Final[dict[str, Callable[[Any], JsonSchemaConstraint]]] = {"schema": _of_schema_task, "chat": _of_chat}


@dataclass
class Tally:
    """What was seen of one task. Times are in seconds."""

    schemas: int = 0
    accepted: int = 0
    passed: int = 0  # accepted, all valid instances let through, no invalid one
    valid: int = 0  # instances of accepted schemas
    valid_let_through: int = 0
    valid_outside_narrowing: int = 0  # refused, because they are no instances of the narrowed schema either
    invalid: int = 0
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)
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
            "valid instances": self.valid,
            "let through": self.valid_let_through,
            "refused as the narrowed schema does": self.valid_outside_narrowing,
            "refused, valid": len(self.valid_refused),
            "invalid instances": self.invalid,
            "invalid accepted": len(self.invalid_accepted),
            "compile_ms": _quantiles(self.compile_seconds, 1e3),
            "mask_us": _quantiles(self.mask_seconds, 1e6),
            "refusals": dict(self.refusals.most_common()),
            "valid_refused": dict(list(self.valid_refused.items())[:_SHOWN]),
            "invalid_accepted": dict(list(self.invalid_accepted.items())[:_SHOWN]),
        }


class Measurement:
    """Walks through the instances of schemas.

    Args:
        weights: the folder of a checkpoint, of which the tokenizer is used.
    """

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
        start = time.perf_counter()
        try:
            constraint = make(line["schema"])
            start = time.perf_counter()
            self._compiler.compile(constraint)
        except (GrammarError, TaskError) as error:
            tally.refused[line["id"]] = str(error)
            tally.refusals[keyword(str(error))] += 1
            return
        finally:
            tally.compile_seconds.append(time.perf_counter() - start)
        tally.accepted += 1
        wrong = 0
        for index, test in enumerate(line["tests"]):
            name = f"{line['id']}[{index}]"
            reason = self._refusal(constraint, test["data"], tally)
            if test["valid"]:
                tally.valid += 1
                if reason is None:
                    tally.valid_let_through += 1
                elif _is_outside(line["schema"], test["data"]):
                    tally.valid_outside_narrowing += 1
                else:
                    tally.valid_refused[name] = reason
                    wrong += 1
            else:
                tally.invalid += 1
                if reason is None:
                    tally.invalid_accepted[name] = json.dumps(test["data"])[:200]
                    wrong += 1
        tally.passed += not wrong

    def _refusal(self, constraint: JsonSchemaConstraint, value: Any, tally: Tally) -> str | None:
        """Why an answer cannot be this value; None if it can."""
        state: GrammarState = self._compiler.compile(constraint)
        text = write_answer(value)
        tokens = [*self._tokenizer.encode(text, add_bos=False), min(self._tokenizer.eos_token_ids)]
        try:
            for index, token in enumerate(tokens):
                if index + 1 == len(tokens) and state.is_complete:
                    break
                start = time.perf_counter()
                state.fill_bitmask(self._mask)
                tally.mask_seconds.append(time.perf_counter() - start)
                if not self._mask[token >> 5] >> (token & 31) & 1 or not state.accept([token]):
                    return f"refused behind {self._tokenizer.decode(tokens[:index])[-60:]!r}"
            reader = JsonReader()
            reader.push(text)
            reader.finish(FinishReason.STOP)
        except (GrammarError, OutputError) as error:
            return str(error)
        return None


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
