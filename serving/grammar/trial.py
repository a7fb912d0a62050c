"""Checks grammars by compiling them, in a child process that ends if a grammar exceeds a limit; `guard` starts it.

It reads one request per line. It answers with one line, and with a second one that names the place if it refuses a
schema. That place is found by compiling parts of the schema. The only keyword that the search knows is `$ref`, so it
need not change when the compiler supports another keyword.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLTokenizer

from serving.grammar.grammar_limits import (
    MAX_COMPILE_BYTES,
    MAX_SEARCH_SECONDS,
    TRIAL_STACK_BYTES,
    limited_matcher,
    parser_limits,
)
from serving.grammar.grammar_text import CHECKED, JSON_PREFIX, schema_of_grammar
from serving.grammar.schema_tree import DATA, escaped, unescaped

Step = str | int
Path = tuple[Step, ...]


def find_fault(schema: Any, error_of: Callable[[Any], str]) -> str:
    """A JSON pointer to the value that causes the error, such as `#/properties/a/uniqueItems`.

    If several values together cause it (a minimum and a maximum), it points to the object that holds them. `error_of`
    returns the compiler's message for a schema, or "" if it compiles.
    """
    search = _Search(error_of, error_of(schema))
    place = search.descend(schema, (), ())
    followed: set[Path] = set()
    while (target := _reference(place)) is not None and target not in followed:
        followed.add(target)
        if _at(place.schema, target) is None:
            break
        place = search.descend(place.schema, target, target)
    return pointer(place.path)


def pointer(path: Path) -> str:
    """A path as a URI fragment (RFC 6901)."""
    return "/".join(["#", *(escaped(str(step)) for step in path)])


@dataclass(frozen=True)
class _Place:
    """The place where a search ended.

    Args:
        path: the place in the original schema.
        schema: the reduced schema, which still causes the error.
        value: the value at the path.
        num_needed: how many of the values in it are needed to cause the error.
    """

    path: Path
    schema: Any
    value: Any
    num_needed: int = 0

    @property
    def is_particular(self) -> bool:
        """Whether the value's own content causes the error; otherwise it is only the presence of the value."""
        return self.num_needed > 0 or not (self.value and isinstance(self.value, dict | list))

    @property
    def merit(self) -> tuple[bool, int]:
        """Sort key of places: the best has several conflicting values, or else is the deepest."""
        return self.num_needed > 1, len(self.path)


class _Search:
    """Removes parts of a schema that are not needed to cause the error."""

    def __init__(self, error_of: Callable[[Any], str], error: str) -> None:
        self._error_of = error_of
        self._error = error

    def descend(self, schema: Any, path: Path, here: Path) -> _Place:
        """Find the deepest value, at or below a given one, that causes the error.

        Args:
            schema: a reduced schema that causes the error.
            path: the place of the given value in the original schema.
            here: the place of the same value in `schema`, whose arrays may have lost items.
        """
        node: Any = _at(schema, here)
        if not isinstance(node, dict | list):
            return _Place(path, schema, node)
        steps: list[Step] = list(node) if isinstance(node, dict) else list(range(len(node)))
        needed = self._needed(schema, here, node, steps)
        whole = _Place(path, schema, node, len(needed))
        if not needed or (len(needed) > 1 and isinstance(node, list)):
            return whole
        schema = _replaced(schema, here, _part(node, needed))
        places = [
            self.descend(schema, (*path, step), (*here, step if isinstance(node, dict) else 0)) for step in needed
        ]
        if len(needed) == 1:
            return places[0]
        # Several values are needed: a property and its entry in `required`, or a definition and the reference to it.
        # Or the message reports several errors.
        inner = [place for place in places if place.is_particular and len(place.path) > len(path) + 1]
        if inner:
            return max(inner, key=lambda place: place.merit)
        wrong = [step for step in needed if self._error_of(_replaced(schema, here, _part(node, [step])))]
        return _Place((*path, wrong[0]), schema, _at(schema, (*here, wrong[0]))) if wrong else whole

    def _needed(self, schema: Any, here: Path, node: Any, steps: list[Step]) -> list[Step]:
        """The children that are needed to cause this error."""

        def is_enough(kept: list[Step]) -> bool:
            return self._error_of(_replaced(schema, here, _part(node, kept))) == self._error

        needed: list[Step] = []
        while steps and not is_enough(needed):
            # The error remains without the first `low` steps, but not without the first `high`.
            low, high = 0, len(steps)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if is_enough(needed + steps[middle:]) else (low, middle)
            needed.append(steps[low])
            steps = steps[low + 1 :]
        return needed


def _reference(place: _Place) -> Path | None:
    """The path that a `$ref` within the same schema refers to; None for any other value."""
    if not (place.path and place.path[-1] == "$ref" and isinstance(place.value, str)):
        return None
    if not place.value.startswith("#/"):
        return None
    return tuple(map(unescaped, unquote(place.value).split("/")[1:]))


def _at(schema: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for step in path:
        if isinstance(schema, list) and str(step).isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        elif isinstance(schema, dict) and step in schema:
            schema = schema[step]
        else:
            return None
    return schema


def _part(node: Any, steps: list[Step]) -> Any:
    return {step: node[step] for step in steps} if isinstance(node, dict) else [node[step] for step in steps]


def _replaced(schema: Any, path: Path, value: Any) -> Any:
    """A copy of the schema with another value at a path."""
    if not path:
        return value
    step: Any = int(path[0]) if isinstance(schema, list) else path[0]
    inner = _replaced(schema[step], path[1:], value)
    if isinstance(schema, dict):
        return {**schema, step: inner}
    return [*schema[:step], inner, *schema[step + 1 :]]


_WALK_BYTES = 60
_MAX_PATTERNS = 50  # they take a few milliseconds each
_SPECIAL_TOKEN = re.compile(r"<[^\s<>\"]+>")


def main() -> None:
    """Answer requests until the input ends."""
    with contextlib.suppress(ValueError, OSError):  # the system's limit is already lower
        resource.setrlimit(resource.RLIMIT_AS, (MAX_COMPILE_BYTES, MAX_COMPILE_BYTES))
    threading.stack_size(TRIAL_STACK_BYTES)
    thread = threading.Thread(target=_answer_all)
    thread.start()
    thread.join()


def _answer_all() -> None:
    vocabulary = LLTokenizer("byte")  # indexing a real vocabulary takes almost a second
    for line in sys.stdin:
        question = json.loads(line)
        try:
            _answer(question, vocabulary)
        except MemoryError:
            os.abort()
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _answer(question: dict[str, Any], vocabulary: LLTokenizer) -> None:
    grammar, is_schema = question["grammar"], question["is_schema"]
    place = ""
    with _processor_time(question["seconds"]):
        error = _try(grammar, vocabulary)
        schema = schema_of_grammar(grammar) if error and question["searches"] else None
        if schema is not None:
            error = _schema_error(schema) or error
        if is_schema and not error and '"pattern"' in grammar:
            error, place = _pattern_fault(schema_of_grammar(grammar), vocabulary)
    _say(error)
    if not error or not is_schema:
        return
    if schema is not None:
        with _processor_time(2 * MAX_SEARCH_SECONDS):
            place = _search(schema)
    _say(place)


def _try(grammar: str, vocabulary: LLTokenizer) -> str:
    """Compile the grammar and compute its first step; returns the error or ""."""
    if _names_special_tokens(grammar):
        return "it names special tokens, which are not part of an answer's text; remove them"
    return str(limited_matcher(vocabulary, grammar).get_error())


def _walk_grammar(grammar: str, vocabulary: LLTokenizer) -> str:
    """Write a random text: some patterns compile, and exceed the lexer's limits only in the text that they are for."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    rng = random.Random(0)
    for _ in range(_WALK_BYTES):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return str(matcher.get_error())
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if not allowed or not matcher.consume_token(rng.choice(allowed)) or matcher.is_stopped():
            break
    return ""


def _pattern_fault(schema: Any, vocabulary: LLTokenizer) -> tuple[str, str]:
    """Why a pattern's texts cannot be written, and the pattern's place; two empty texts if there is none.

    Of many different patterns the first are tried.
    """
    waiting: list[tuple[Path, Any]] = [((), schema)]
    tried: set[str] = set()
    while waiting and len(tried) < _MAX_PATTERNS:
        path, node = waiting.pop()
        if isinstance(node, dict) and isinstance(node.get("pattern"), str) and node.get("type", "string") == "string":
            text = {name: node[name] for name in ("pattern", "minLength", "maxLength", "format") if name in node}
            grammar = JSON_PREFIX + json.dumps({"type": "string", **text})
            if grammar not in tried and (error := _walk_grammar(grammar, vocabulary)):
                return error, pointer(path)
            tried.add(grammar)
        if isinstance(node, dict):
            waiting += [((*path, name), part) for name, part in node.items() if name not in (*DATA, CHECKED)]
        elif isinstance(node, list):
            waiting += [((*path, index), part) for index, part in enumerate(node)]
    return "", ""


def _names_special_tokens(grammar: str) -> bool:
    if grammar.startswith(JSON_PREFIX) or not _SPECIAL_TOKEN.search(grammar):
        return False
    # `<…>` may also occur in a string. Without a vocabulary, llguidance warns about each special token.
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    return not is_error and any("no tokenizer" in message for message in messages)


def _schema_error(schema: Any) -> str:
    """The compiler's message about a schema, without the grammar's line; "" if the schema compiles."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return str(LLMatcher.validate_grammar(grammar, limits=parser_limits()))
    except BaseException as error:  # llguidance's panics are not subclasses of Exception
        return str(error)


def _search(schema: Any) -> str:
    end = time.monotonic() + MAX_SEARCH_SECONDS

    def error_of(part: Any) -> str:
        return _schema_error(part) if time.monotonic() < end else "no time left"

    return find_fault(schema, error_of)


@contextlib.contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """End this process if the block takes more than this processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def _say(text: str) -> None:
    print(json.dumps(text), flush=True)
