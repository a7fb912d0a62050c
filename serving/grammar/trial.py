"""Checks grammars by compiling them, in a child process that ends if a grammar exceeds a limit; `guard` starts it.

It reads one request per line. It answers with one line, and with a second one that names the place if it refuses a
schema.
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
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from serving.grammar.grammar_limits import (
    MAX_COMPILE_BYTES,
    MAX_COMPILE_SECONDS,
    MAX_SEARCH_SECONDS,
    TRIAL_STACK_BYTES,
    parser_limits,
)
from serving.grammar.grammar_text import JSON_PREFIX
from serving.grammar.schema_fault import Path, find_fault, pointer

_WALK_BYTES = 60
_MAX_PATTERNS = 50  # they take a few milliseconds each
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
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
            _answer(question["grammar"], question["is_schema"], vocabulary)
        except MemoryError:
            os.abort()
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _answer(grammar: str, is_schema: bool, vocabulary: LLTokenizer) -> None:
    with _processor_time(MAX_COMPILE_SECONDS):
        error = _try(grammar, vocabulary)
        schema = json.loads(grammar.removeprefix(JSON_PREFIX)) if error and is_schema else None
        if schema is not None:
            error = _schema_error(schema) or error
        place = ""
        if is_schema and not error and '"pattern"' in grammar:
            error, place = _pattern_fault(json.loads(grammar.removeprefix(JSON_PREFIX)), vocabulary)
    _say(error)
    if place:
        _say(place)
    elif schema is not None:
        with _processor_time(2 * MAX_SEARCH_SECONDS):
            _say(_search(schema))


def _try(grammar: str, vocabulary: LLTokenizer) -> str:
    """Compile the grammar and compute its first step; returns the error or ""."""
    if _names_special_tokens(grammar):
        return "it names special tokens, which are not part of an answer's text; remove them"
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return str(matcher.get_error())


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
            waiting += [((*path, name), part) for name, part in node.items() if name not in _DATA]
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
