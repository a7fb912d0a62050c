"""Follows a JSON answer while it is written, and refuses tokens that complete a value which its schema does not allow.

A grammar may allow more than its schema: see `relax`. The bitmasks are the grammar's. A token is checked when it is to
be accepted, and if it is refused, the sampler chooses another one. To try all tokens that the grammar allows would take
milliseconds in each string, as hundreds of tokens may end it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError
from serving.grammar.answer_checks import AnswerChecks, Place
from serving.grammar.grammar_state import GrammarState, forbid
from serving.text import Tokenizer

_QUOTE, _BACKSLASH = b'"\\'
_BLANK: Final = b" \t\r\n:"
_ENDS: Final = b",]} \t\r\n"
_LITERALS: Final = (b"true", b"false", b"null")
_CLOSING: Final = (b'"', b"}", b"]", b",")
_MAX_TRIED: Final = 64  # allowed tokens of which all are tried in advance
_MAX_AHEAD: Final = 32  # the same behind a token that is to be accepted


class Violation(Exception):
    """A value that is complete does not match; its argument is the keyword's JSON pointer."""


class _Mode(Enum):
    VALUE = auto()  # the start of a value, or the end of an empty array
    KEY = auto()
    IN_KEY = auto()
    IN_TEXT = auto()
    IN_WORD = auto()  # a number or literal
    AFTER = auto()  # a value is complete


@dataclass(frozen=True, slots=True)
class _Open:
    """An open object or array: its first byte, its place, how many values it has, and the last key."""

    start: int
    place: Place
    is_object: bool
    count: int = 0
    key: str = ""

    def inner(self) -> Place:
        return self.place.property(self.key) if self.is_object else self.place.item(self.count)


@dataclass(frozen=True, slots=True)
class AnswerText:
    """How far an answer has come.

    Args:
        root: the place of the whole answer.
        text: the answer so far.
        open: its open objects and arrays, the innermost last.
        start: the first byte of the string or word that is being written.
        is_escaped: whether the last character in a string was a backslash that counts.
    """

    root: Place
    text: bytes = b""
    open: tuple[_Open, ...] = ()
    mode: _Mode = _Mode.VALUE
    start: int = 0
    is_escaped: bool = False

    @property
    def is_checked(self) -> bool:
        """Whether the value that is being written, or one around it, has checks."""
        return self._place().has_checks or any(one.place.has_checks for one in self.open)

    def after(self, more: bytes) -> AnswerText:
        """The answer with more text.

        Raises:
            Violation: it completes a value that does not match.
        """
        state = replace(self, text=self.text + more)
        try:
            for at in range(len(self.text), len(state.text)):
                state = state._after_byte(at)
        except RecursionError as error:
            raise GrammarError("the answer is nested too deeply to be checked with the JSON schema") from error
        return state

    def ended(self) -> AnswerText:
        """The whole answer, which may be a number that has ended only now.

        Raises:
            Violation: it does not match.
        """
        return self._completed(len(self.text)) if self.mode is _Mode.IN_WORD and not self.open else self

    def _after_byte(self, at: int) -> AnswerText:
        byte, state = self.text[at], self
        if self.mode in (_Mode.IN_TEXT, _Mode.IN_KEY):
            return self._in_string(at)
        if self.mode is _Mode.IN_WORD:
            if byte not in _ENDS:
                is_whole = self.text[self.start : at + 1] in _LITERALS
                return self._completed(at + 1) if is_whole else self
            state = self._completed(at)
        if byte in _BLANK:
            return state
        if byte == _QUOTE:
            return replace(state, mode=_Mode.IN_KEY if state.mode is _Mode.KEY else _Mode.IN_TEXT, start=at)
        match chr(byte):
            case "{" | "[" as bracket:
                opened = _Open(at, state._place(), is_object=bracket == "{")
                mode = _Mode.KEY if opened.is_object else _Mode.VALUE
                return replace(state, open=(*state.open, opened), mode=mode)
            case "}" | "]":
                return replace(state, open=state.open[:-1], start=state.open[-1].start)._completed(at + 1)
            case ",":
                return replace(state, mode=_Mode.KEY if state.open[-1].is_object else _Mode.VALUE)
        return replace(state, mode=_Mode.IN_WORD, start=at)

    def _in_string(self, at: int) -> AnswerText:
        byte = self.text[at]
        if self.is_escaped or byte == _BACKSLASH:
            return replace(self, is_escaped=not self.is_escaped)
        if byte != _QUOTE:
            return self
        if self.mode is _Mode.IN_TEXT:
            return self._completed(at + 1)
        key = _value(self.text[self.start : at + 1])
        if (error := self.open[-1].place.key_error(key)) is not None:
            raise Violation(error)
        return replace(self, open=(*self.open[:-1], replace(self.open[-1], key=key)), mode=_Mode.VALUE)

    def _completed(self, end: int) -> AnswerText:
        """The state behind the value that ends at this byte."""
        place = self._place()
        if place.has_checks and (error := place.error(_value(self.text[self.start : end]))) is not None:
            raise Violation(error)
        if not self.open:
            return replace(self, mode=_Mode.AFTER)
        parent = replace(self.open[-1], count=self.open[-1].count + 1)
        if parent.place.has_early_checks:
            so_far = self.text[parent.start : end] + (b"}" if parent.is_object else b"]")
            if (error := parent.place.early_error(_value(so_far))) is not None:
                raise Violation(error)
        return replace(self, open=(*self.open[:-1], parent), mode=_Mode.AFTER)

    def _place(self) -> Place:
        return self.open[-1].inner() if self.open else self.root


class AnswerHistory:
    """An answer after each of its tokens, so that tokens can be taken back."""

    def __init__(self, tokenizer: Tokenizer, checks: AnswerChecks) -> None:
        self._tokenizer = tokenizer
        self._states = [AnswerText(checks.root)]

    @property
    def last(self) -> AnswerText:
        """The answer so far."""
        return self._states[-1]

    def after(self, token_id: int, state: AnswerText | None = None) -> AnswerText:
        """The state after one more token of the answer, or of a state.

        Raises:
            Violation: the token completes a value that does not match.
        """
        state = state or self.last
        if token_id in self._tokenizer.eos_token_ids:
            return state.ended()
        return state.after(self._tokenizer.token_bytes(token_id))

    def add(self, state: AnswerText) -> None:
        """Add the state after an accepted token."""
        self._states.append(state)

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self._states[len(self._states) - num_tokens :]

    def refuse(self, bitmask: NDArray[np.int32], closing: ClosingTokens) -> None:
        """Take tokens that complete wrong values out of a bitmask [ceil(vocab / 32)] int32, as far as that is quick.

        Where many tokens are allowed, those are tried that begin with the end of a value. Others, such as a letter and
        a quote, may complete a wrong value.
        """
        if not self.last.is_checked:
            return
        for token in closing.among(bitmask):
            try:
                self.after(token)
            except Violation:
                forbid(bitmask, [token])


class ClosingTokens:
    """The tokens of a vocabulary that begin with the end of a value."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab_size = tokenizer.vocab_size
        texts = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        self._ids = np.array([token for token, text in enumerate(texts) if text[:1] in _CLOSING], np.int64)

    def among(self, bitmask: NDArray[np.int32]) -> list[int]:
        """Those of a bitmask; all of its tokens if they are few."""
        words = bitmask.view(np.uint32)
        if np.bitwise_count(words).sum() <= _MAX_TRIED:
            allowed = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little"))
            return [token for token in map(int, allowed) if token < self._vocab_size]
        ids = self._ids[self._ids < 32 * len(words)]
        return [int(token) for token in ids[words[ids >> 5] >> (ids & 31).astype(np.uint32) & 1 == 1]]


class CheckedState(GrammarState):
    """A `GrammarState` of a JSON schema whose grammar allows more than the schema."""

    def __init__(self, inner: GrammarState, history: AnswerHistory, num_words: int) -> None:
        self._inner = inner
        self._history = history
        self._refused: dict[int, str] = {}  # tokens that were refused behind the text so far → the keyword's pointer
        self._bitmask = np.zeros(num_words, np.int32)

    @property
    def is_complete(self) -> bool:
        """See `GrammarState`."""
        return self._inner.is_complete

    @property
    def may_end(self) -> bool:
        """See `GrammarState`."""
        return self._inner.may_end and not self._violation_of_end()

    def accept(self, token_ids: list[int]) -> int:
        """See `drafter.Grammar`."""
        for count, token_id in enumerate(token_ids):
            if not self._accept(token_id):
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """See `drafter.Grammar`."""
        if num_tokens:
            self._inner.rollback(num_tokens)
            self._history.rollback(num_tokens)
            self._refused = {}

    def forced_tokens(self) -> list[int]:
        """See `GrammarState`."""
        return self._inner.forced_tokens()

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`; some of the tokens may be refused later."""
        self._inner.fill_bitmask(bitmask)

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`; some of the tokens may be refused later."""
        self._inner.fill_bitmasks(token_ids, bitmasks)

    def unmet(self, token_id: int) -> GrammarError | None:
        """The error for a token that the schema refuses behind the text so far; None for any other."""
        pointer = self._refused.get(token_id)
        return None if pointer is None else GrammarError(unmet(pointer, self._history.last.text))

    def _accept(self, token_id: int) -> bool:
        if token_id in self._refused:
            self._check_for_others()
            return False
        if not self._inner.accept([token_id]):
            return False
        try:
            state = self._history.after(token_id)
            if state.is_checked and not self._inner.is_complete:
                self._look_ahead(state)
        except Violation as violation:
            self._inner.rollback(1)
            self._refused[token_id] = str(violation)
            self._check_for_others()
            return False
        self._history.add(state)
        self._refused = {}
        return True

    def _look_ahead(self, state: AnswerText) -> None:
        """Follow the text that the grammar forces next, or try the few tokens that it allows.

        Raises:
            Violation: whatever follows completes a wrong value.
        """
        if forced := self._inner.forced_tokens():
            for token in forced:
                state = self._history.after(token, state)
            return
        self._inner.fill_bitmask(self._bitmask)
        if np.bitwise_count(self._bitmask.view(np.uint32)).sum() > _MAX_AHEAD:
            return
        violation = None
        for token in np.flatnonzero(np.unpackbits(self._bitmask.view(np.uint8), bitorder="little")):
            try:
                self._history.after(int(token), state)
                return
            except Violation as error:
                violation = error
        if violation is not None:
            raise violation

    def _check_for_others(self) -> None:
        """Raise an error if all tokens that the grammar allows were refused."""
        self._inner.fill_bitmask(self._bitmask)
        forbid(self._bitmask, self._refused)
        if not self._bitmask.any():
            raise GrammarError(unmet(next(reversed(self._refused.values())), self._history.last.text))

    def _violation_of_end(self) -> bool:
        try:
            self._history.last.ended()
        except Violation:
            return True
        return False


def unmet(pointer: str, text: bytes) -> str:
    """The message for an answer in which a keyword could not be met."""
    end = text[-60:].decode(errors="replace")
    return (
        f"the JSON schema: {pointer} could not be met: no token can follow the answer's {end!r}; ask again with "
        "another seed, or simplify that keyword"
    )


def _value(text: bytes) -> Any:
    return json.loads(text, strict=False)
