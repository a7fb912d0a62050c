"""Checks and compiles constraints, each in a separate process first, so that one that is too expensive ends only that.

llguidance runs in the model's process, where it cannot be interrupted and a very deep recursion would crash it. A check
takes milliseconds, or up to a second for a constraint that is refused: use a thread.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from queue import LifoQueue
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from serving.constraints import CallsConstraint, Constraint, JsonSchemaConstraint, LarkConstraint
from serving.errors import GrammarError
from serving.grammar import trial
from serving.grammar.answer_checks import AnswerChecks
from serving.grammar.calls_text import calls_grammar
from serving.grammar.grammar_limits import MAX_COMPILE_BYTES, MAX_COMPILE_SECONDS, limited_matcher
from serving.grammar.grammar_text import JSON_PREFIX, Relaxation, checks_of_grammar, grammar_text
from serving.grammar.schema_tree import unescaped

_log = logging.getLogger(__name__)
_ROOT = Path(__file__).parents[2]
_PROGRAM = f"from {trial.__name__} import main; main()"
_PLACE = re.compile(r" at #/?(\S*?)(:? )")
_RELAXED_SECONDS: Final = 0.15  # processor time of a rewritten schema; alternatives may multiply
_MAX_MESSAGE = 300  # characters; llguidance's message repeats a regular expression
_CONTEXT = re.compile(r"\n *\d+ \| |\n<backtrace>|\n<state>|\s*<non-verbose/>")
_NO_ANSWER = "NoExtensionBias"  # llguidance's word for it
# Signal that ended a process → why.
_REASONS = {
    signal.SIGPROF: f"takes over {MAX_COMPILE_SECONDS:g} s to compile, which is the limit",
    signal.SIGABRT: f"takes over {MAX_COMPILE_BYTES >> 20} MB to compile, which is the limit",
    signal.SIGKILL: "was killed while it was compiled, as the system does when memory is short",
    signal.SIGSEGV: "has too many levels, references or optional properties in a row for the compiler's stack",
}


class LimitError(GrammarError):
    """Compiling a constraint takes more time or memory than the limit."""


class GrammarGuard:
    """Compiles grammars in separate processes. Safe to use from several threads.

    Args:
        num_processes: maximum number of processes; a check waits only if all of them are busy.
    """

    def __init__(self, num_processes: int) -> None:
        self._free: LifoQueue[_Process | None] = LifoQueue()  # the one used last is used next
        for _ in range(num_processes):
            self._free.put(None)

    def check(
        self,
        grammar: str,
        *,
        name: str,
        is_schema: bool = False,
        searches: bool = False,
        seconds: float = MAX_COMPILE_SECONDS,
    ) -> None:
        """Check that a grammar compiles. Takes milliseconds, or up to a second if it is refused.

        Args:
            grammar: the text that `grammar_text` gives.
            name: the name of the grammar, for error messages.
            is_schema: whether it was made from a JSON schema; `searches` is whether the error says where in the schema.
            seconds: the limit of processor time.

        Raises:
            LimitError: compiling takes more than a limit.
            GrammarError: the grammar does not compile.
        """
        process = self._free.get()
        try:
            if process is not None and not process.is_alive:  # ended from outside
                process.close()
                process = None
            process = process or _Process()
            process.check(grammar, name, is_schema, searches, seconds)
        finally:
            self._free.put(process if process is not None and process.is_alive else None)

    def warm_up(self) -> None:
        """Start a process, which takes a tenth of a second."""
        self.check('start: "a"', name="a grammar")

    def close(self) -> None:
        """End the idle processes; new ones start when they are needed."""
        for process in [self._free.get() for _ in range(self._free.qsize())]:
            if process is not None:
                process.close()
            self._free.put(None)


@cache
def shared_guard() -> GrammarGuard:
    """This process's guard. Its child processes end when this process ends, because their input is closed then."""
    guard = GrammarGuard(4)
    atexit.register(guard.close)
    return guard


class _Process:
    """One child process, which checks one grammar at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a compiler's panic, which is also part of the answer
            cwd=_ROOT,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches only the server
        )

    @property
    def is_alive(self) -> bool:
        """Whether the process can check another grammar."""
        return self._process.poll() is None

    def check(self, grammar: str, name: str, is_schema: bool, searches: bool, seconds: float) -> None:
        """See `GrammarGuard.check`."""
        question = {"grammar": grammar, "is_schema": is_schema, "searches": searches, "seconds": seconds}
        error = self._ask(question)
        if error is None:
            raise LimitError(f"{name} {self._reason()}; simplify it")
        if not error:
            return
        place = self._read() if is_schema else None
        where = f" at {place}" if place else ""
        raise GrammarError(f"{name} does not compile{where}: {_shortened(error)}")

    def _ask(self, question: object) -> str | None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, so there is no answer
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> str | None:
        """The next line of the answer; None if the process ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            return None
        return str(json.loads(line))

    def _reason(self) -> str:
        code = self._process.wait()
        if -code in _REASONS:
            return _REASONS[signal.Signals(-code)]
        _log.error("the grammar compiler ended with code %s; see: echo | %s -c %r", code, sys.executable, _PROGRAM)
        return "makes the grammar compiler fail"

    def close(self) -> None:
        """End the process by closing its input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _shortened(message: str) -> str:
    """The message in one line, without the surrounding lines of the grammar and without a panic's call stack."""
    text = " ".join(_CONTEXT.split(message, maxsplit=1)[0].split())
    if text == _NO_ANSWER:
        return "no answer can match it, or none that the compiler can find"
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"


CONSTRAINT_NAMES: dict[type[Constraint], str] = {
    LarkConstraint: "the grammar",
    JsonSchemaConstraint: "the JSON schema",
    CallsConstraint: "the grammar of the tools",
}


@lru_cache(256)
def check_constraint(constraint: Constraint) -> str:
    """The constraint's grammar as text, after checking that it compiles within the limits.

    A JSON schema that llguidance does not compile is rewritten; what is lost is checked while an answer is written.

    Raises:
        GrammarError: it does not compile; the message says why and, for a JSON schema, where.
    """
    name = CONSTRAINT_NAMES[type(constraint)]
    if isinstance(constraint, CallsConstraint):
        return _check_calls(constraint, name)
    grammar = grammar_text(constraint)
    if isinstance(constraint, JsonSchemaConstraint):
        return _check_schema(constraint, grammar, name)
    if not (isinstance(constraint, LarkConstraint) and constraint.is_trusted):
        shared_guard().check(grammar, name=name)
    return grammar


def _check_schema(constraint: JsonSchemaConstraint, grammar: str, name: str) -> str:
    guard = shared_guard()
    try:
        guard.check(grammar, name=name, is_schema=True)
        return grammar
    except LimitError:
        raise
    except GrammarError:
        pass
    with contextlib.suppress(GrammarError):
        grammar = grammar_text(constraint, Relaxation.EXACT)
        guard.check(grammar, name=name, is_schema=True, seconds=_RELAXED_SECONDS)
        return grammar
    grammar = grammar_text(constraint, Relaxation.ROUGH)
    try:
        guard.check(grammar, name=name, is_schema=True, searches=True, seconds=2 * _RELAXED_SECONDS)
    except GrammarError as error:
        raise GrammarError(_PLACE.sub(partial(_given_place, json.loads(constraint.schema)), str(error))) from error
    return grammar


def _check_calls(constraint: CallsConstraint, name: str) -> str:
    # The guard has no model's vocabulary.
    plain = replace(constraint, format=replace(constraint.format, tokens=()))

    def compiles(write: Callable[[JsonSchemaConstraint], str]) -> str:
        schemas = []
        for function, arguments in constraint.functions:
            try:
                schemas.append(write(arguments).removeprefix(JSON_PREFIX))
            except GrammarError as error:
                raise GrammarError(f"the tool {function[:80]!r}: {error}") from error
        text = None if constraint.text is None else write(constraint.text).removeprefix(JSON_PREFIX)
        try:
            shared_guard().check(calls_grammar(plain, schemas, text), name=name)
            return calls_grammar(constraint, schemas, text)
        except GrammarError:  # for many tools it is too large with a second grammar of each one's arguments
            shared_guard().check(calls_grammar(plain, schemas, text, is_loose=False), name=name)
            return calls_grammar(constraint, schemas, text, is_loose=False)

    try:
        return compiles(grammar_text)  # all at once: a check of each takes milliseconds
    except LimitError:
        raise
    except GrammarError:
        return compiles(check_constraint)


def _given_place(schema: Any, found: re.Match[str]) -> str:
    """The place of a rewritten schema, up to where the given one has it too."""
    steps: list[str] = []
    for step in found[1].split("/"):
        key = unescaped(step)
        inner = schema.get(key) if isinstance(schema, dict) else None
        if isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            inner = schema[int(key)]
        if inner is None:
            break
        schema = inner
        steps.append(step)
    return " at " + "/".join(["#", *steps]) + found[2]


def answer_checks(constraint: Constraint | None) -> AnswerChecks | None:
    """What answers must be checked with besides the constraint's grammar; None for nothing.

    Raises:
        GrammarError: see `check_constraint`.
    """
    return checks_of_grammar(check_constraint(constraint)) if isinstance(constraint, JsonSchemaConstraint) else None


def compile_constraint(constraint: Constraint, vocabulary: LLTokenizer) -> LLMatcher:
    """A matcher that is at the start of the constraint.

    Raises:
        GrammarError: see `check_constraint`; or the grammar is too large for this vocabulary.
    """
    matcher = limited_matcher(vocabulary, check_constraint(constraint))
    if matcher.is_error():
        reason = matcher.get_error().partition("\n")[0]
        raise GrammarError(f"{CONSTRAINT_NAMES[type(constraint)]} does not compile: {reason}; simplify it")
    return matcher


class TextCheck:
    """Says where the text of a finished answer breaks a constraint, without the model's vocabulary.

    Raises:
        GrammarError: it does not compile.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._vocabulary = LLTokenizer("byte")
        self._matcher = compile_constraint(constraint, self._vocabulary)

    def fault(self, answer: str) -> str | None:
        """Where an answer breaks the constraint; None if it is allowed."""
        tokens = self._vocabulary.tokenize_bytes(answer.encode())
        matcher = self._matcher.deep_copy()
        taken = matcher.try_consume_tokens(tokens)
        return None if taken == len(tokens) and matcher.is_accepting() else _explain(answer.encode(), taken)


def _explain(text: bytes, taken: int) -> str:
    """Where an answer breaks the constraint; `taken` is the number of bytes that it allows."""
    before, after = (part.decode(errors="replace") for part in (text[max(0, taken - 30) : taken], text[taken:][:30]))
    if text[:taken].rstrip(b"u0123456789abcdefABCDEF").endswith(b"\\") or after.startswith("/"):
        hint = "; a constrained answer has no escaped characters: train on json.dumps(answer, ensure_ascii=False)"
    else:
        hint = ""
    return f"after {before!r} the grammar does not allow {after!r}{hint}" if after else f"ends too early: {before!r}"
