"""Tracks which tokens a grammar allows next, for one request, and keeps objects in JSON answers free of repeated keys.

A context-free grammar cannot do the latter: llguidance allows each property that a schema lists once, but of the keys
that it does not list, as in any JSON object, it remembers none. `UniqueKeysState` follows the text beside llguidance's
matcher, and takes tokens that end a repeated key out of its bitmasks. The drafts of a request pass through the same
state, so that it changes no speculation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

import llguidance
import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError
from serving.grammar.schema_tree import MAPS, types_of
from serving.text import Tokenizer


class GrammarState:
    """The state of one request's grammar: see `drafter.Grammar`.

    The end token is accepted where the text may end. Tokens that are not allowed leave the state unchanged.

    Args:
        matcher: llguidance's state.
        executor: computes several bitmasks at a time.
        on_failure: called when llguidance fails.
        name: the name of the constraint in error messages.

    Raises:
        GrammarError: from any method, if llguidance fails, for example because the grammar is too ambiguous for its
            limits. The state cannot be used afterwards.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        executor: llguidance.LLExecutor,
        on_failure: Callable[[], None],
        name: str = "the grammar",
    ) -> None:
        self._matcher = matcher
        self._executor = executor
        self._on_failure = on_failure
        self._name = name

    @property
    def is_complete(self) -> bool:
        """Whether only the end token may follow, or it has been accepted."""
        return bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def accept(self, token_ids: list[int]) -> int:
        """See `drafter.Grammar`."""
        count: int = self._matcher.try_consume_tokens(token_ids)
        if count < len(token_ids):
            self._check()
        return count

    def rollback(self, num_tokens: int) -> None:
        """See `drafter.Grammar`."""
        if not self._matcher.rollback(num_tokens):
            self._check()

    def forced_tokens(self) -> list[int]:
        """Tokens of the text that must come next, as the tokenizer would encode it; often empty."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        self._check()

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        if not token_ids:
            return self.fill_bitmask(bitmasks[0])
        self._executor.unsafe_compute_mask_ptr_with_draft_token(
            [(self._matcher, 0, token_ids)], bitmasks.ctypes.data, bitmasks.strides[0], len(bitmasks)
        )
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._on_failure()
            reason = self._matcher.get_error().partition("\n")[0]
            raise GrammarError(f"{self._name} failed after the text so far: {reason}; simplify it")


_QUOTE, _BACKSLASH = b'"\\'
_OBJECT_KEYWORDS: Final = ("properties", "required", "propertyNames", "minProperties", "maxProperties")
_LITERALS: Final = ("enum", "const")
_REFERENCES: Final = ("$ref", "anyOf", "oneOf", "allOf")
_PARTS: Final = (
    "items",
    "additionalProperties",
    "contains",
    "not",
    "if",
    "then",
    "else",
    *_REFERENCES[1:],
    "prefixItems",
)


class _Place(Enum):
    """What the next character of a JSON text belongs to."""

    KEY = auto()  # the opening quote of a key, or the end of the object
    IN_KEY = auto()
    IN_TEXT = auto()  # a string that is a value
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class JsonText:
    """How far a JSON text has come.

    Args:
        open: for each open object its keys, for each open array None; the innermost last.
        place: what comes next.
        key: the bytes of the key that is being written, without its quotes.
        is_escaped: whether the last character in a string was a backslash that counts.
    """

    open: tuple[frozenset[str] | None, ...] = ()
    place: _Place = _Place.OTHER
    key: bytes = b""
    is_escaped: bool = False

    def after(self, text: bytes) -> JsonText | None:
        """The same text with more of it; None if an object has a key twice."""
        found: JsonText | None = self
        for byte in text:
            found = found._after_byte(byte)  # type: ignore[union-attr]  # None ends the loop
            if found is None:
                break
        return found

    def _after_byte(self, byte: int) -> JsonText | None:
        if self.place in (_Place.IN_KEY, _Place.IN_TEXT):
            return self._in_string(byte)
        match chr(byte):
            case '"':
                return replace(self, place=_Place.IN_KEY if self.place is _Place.KEY else _Place.IN_TEXT, key=b"")
            case "{":
                return JsonText((*self.open, frozenset()), _Place.KEY)
            case "[":
                return JsonText((*self.open, None))
            case "}" | "]":
                return JsonText(self.open[:-1])
            case ",":
                return JsonText(self.open, _Place.KEY if self.open and self.open[-1] is not None else _Place.OTHER)
        return self

    def _in_string(self, byte: int) -> JsonText | None:
        key = self.key + bytes([byte]) if self.place is _Place.IN_KEY else b""
        if self.is_escaped or byte == _BACKSLASH:
            return replace(self, key=key, is_escaped=not self.is_escaped)
        if byte != _QUOTE:
            return replace(self, key=key) if key else self
        if self.place is _Place.IN_TEXT:
            return JsonText(self.open)
        keys, name = self.open[-1], _decoded(self.key)
        assert keys is not None, "only objects have keys"
        return None if name in keys else JsonText((*self.open[:-1], keys | {name}))


class QuoteTokens:
    """The tokens of a vocabulary that may end a key."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)}
        self.texts = {token: text for token, text in texts.items() if _QUOTE in text}
        # Tokens by their least number of quotes: one ends a key that has begun, two are a key, three are two keys.
        self._with = [
            np.array([token for token, text in self.texts.items() if text.count(_QUOTE) >= least], np.int64)
            for least in range(4)
        ]
        # Most tokens end a key in one way: by what they have before their quote.
        self._by_end: dict[bytes, list[int]] = {}
        others = []
        for token, text in self.texts.items():
            end = text.partition(b'"')[0]
            if _BACKSLASH in end or text.count(_QUOTE) > 2:
                others.append(token)
            else:
                self._by_end.setdefault(end, []).append(token)
        self._others = np.array(others, np.int64)

    def refused(self, state: JsonText, bitmask: NDArray[np.int32]) -> Iterator[int]:
        """The tokens of a bitmask, [ceil(vocab / 32)] int32, that would repeat a key."""
        words = bitmask.view(np.uint32)
        is_in_key = state.place is _Place.IN_KEY and any(state.open)
        is_plain = is_in_key and _BACKSLASH not in state.key
        if is_plain:
            keys = [key.encode(errors="surrogatepass") for key in state.open[-1] or ()]
            ends = [key.removeprefix(state.key) for key in keys if key.startswith(state.key)]
            for token in (token for end in ends for token in self._by_end.get(end, ())):
                if token < 32 * len(words) and words[token >> 5] >> np.uint32(token & 31) & 1:
                    yield token
        candidates = self._others if is_plain else self._with[3 if not any(state.open) else 1 if is_in_key else 2]
        candidates = candidates[candidates < 32 * len(words)]
        bits = words[candidates >> 5] >> (candidates & 31).astype(np.uint32) & 1
        yield from (int(token) for token in candidates[bits == 1] if state.after(self.texts[int(token)]) is None)


class KeyHistory:
    """The keys of one answer after each of its tokens, so that tokens can be taken back."""

    def __init__(self, tokenizer: Tokenizer, quotes: QuoteTokens) -> None:
        self._tokenizer = tokenizer
        self._quotes = quotes
        self._states = [JsonText()]

    def following(self, token_ids: list[int]) -> list[JsonText]:
        """The states after each of these tokens, up to one that would repeat a key."""
        states, state = [], self._states[-1]
        for token in token_ids:
            after = state.after(self._tokenizer.token_bytes(token))
            if after is None:
                break
            states.append(state := after)
        return states

    def extend(self, states: list[JsonText]) -> None:
        """Add the states after accepted tokens."""
        self._states += states

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self._states[len(self._states) - num_tokens :]

    def refuse(self, bitmask: NDArray[np.int32], state: JsonText | None = None) -> None:
        """Take the tokens that would repeat a key out of a bitmask.

        Args:
            bitmask: [ceil(vocab / 32)] int32, of the grammar.
            state: where the text is; None for the end of the accepted tokens.
        """
        forbid(bitmask, self._quotes.refused(state or self._states[-1], bitmask))


class UniqueKeysState(GrammarState):
    """A `GrammarState` of a JSON schema in which no object gets a key twice."""

    def __init__(self, keys: KeyHistory, *rest: Any) -> None:
        super().__init__(*rest)
        self._keys = keys

    def accept(self, token_ids: list[int]) -> int:
        """See `drafter.Grammar`."""
        states = self._keys.following(token_ids)
        count = super().accept(token_ids[: len(states)])
        self._keys.extend(states[:count])
        return count

    def rollback(self, num_tokens: int) -> None:
        """See `drafter.Grammar`."""
        super().rollback(num_tokens)
        self._keys.rollback(num_tokens)

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        super().fill_bitmask(bitmask)
        self._keys.refuse(bitmask)

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        super().fill_bitmasks(token_ids, bitmasks)
        for state, bitmask in zip([None, *self._keys.following(token_ids)], bitmasks, strict=False):
            self._keys.refuse(bitmask, state)


def forbid(bitmask: NDArray[np.int32], tokens: Iterable[int]) -> None:
    """Clear the bits of tokens in a bitmask [ceil(vocab / 32)] int32, lowest bit first."""
    words = bitmask.view(np.uint32)
    for token in tokens:
        words[token >> 5] &= ~np.uint32(1 << (token & 31))


def may_repeat_keys(schema: Any) -> bool:
    """Whether a value of the schema may be, or contain, an object with keys that the schema does not list."""
    if schema is True:
        return True
    if not isinstance(schema, dict):
        return isinstance(schema, list) and any(map(may_repeat_keys, schema))
    kinds = types_of(schema)
    is_any = kinds == [None] and not any(name in schema for name in (*_LITERALS, *_REFERENCES))
    is_object = "object" in kinds or is_any or any(name in schema for name in _OBJECT_KEYWORDS)
    if is_object and (schema.get("additionalProperties") is not False or schema.get("patternProperties")):
        return True
    if ("array" in kinds or "prefixItems" in schema) and "items" not in schema:
        return True  # its items may be anything
    parts = [schema[name] for name in _PARTS if name in schema]
    parts += [part for name in MAPS if isinstance(schema.get(name), dict) for part in schema[name].values()]
    return any(may_repeat_keys(part) for part in parts if part is not False)


def _decoded(key: bytes) -> str:
    text = key.decode(errors="replace")
    return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
