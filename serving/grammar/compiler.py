"""Compile grammars, and track which tokens they allow next.

grammar = GrammarCompiler(tokenizer, vocab_size=49152).compile(LarkConstraint('start: "yes" | "no"'))
grammar.accept(token_ids)
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import llguidance

from serving.constraints import Constraint, JsonSchemaConstraint
from serving.errors import WeightsError
from serving.grammar import check_constraint, compile_constraint
from serving.grammar.answer_checks import AnswerChecks
from serving.grammar.checked_state import AnswerHistory, CheckedState
from serving.grammar.grammar_state import GrammarState, KeyHistory, QuoteTokens, UniqueKeysState, may_repeat_keys
from serving.grammar.grammar_text import checks_of_grammar, schema_of_grammar
from serving.grammar.guard import CONSTRAINT_NAMES, shared_guard
from serving.text import Tokenizer


class GrammarCompiler:
    """Compiles constraints, and caches the most recently used ones. Safe to use from several threads.

    Args:
        tokenizer: the tokenizer of the model.
        vocab_size: width of the model's logits; ids beyond the tokenizer's are never allowed.
        cache_size: number of compiled grammars to keep.
        cache_seconds: processor time that compiling all of those took. It bounds their memory, which llguidance
            does not report: 0.03 to 0.15 MB for a millisecond.
        is_strict: whether states also forbid repeated keys, and values that the grammar allows and the schema does
            not; false for tokens that another program's grammar chose.

    Raises:
        WeightsError: the tokenizer has pieces of text for which the model has no logits.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        cache_size: int = 64,
        cache_seconds: float = 2.0,
        is_strict: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache_size = cache_size
        self._cache_seconds = cache_seconds
        self._cache: OrderedDict[Constraint, _Compiled] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._index_lock = threading.Lock()
        self._ll_tokenizer: llguidance.LLTokenizer | None = None
        self._is_strict = is_strict
        self._quotes: QuoteTokens | None = None
        self._vocabulary: str | None = grammar_vocabulary(tokenizer.to_json(), vocab_size)
        self._executor = llguidance.LLExecutor(1)  # one thread: a request's rows are computed in order

    def warm_up(self) -> None:
        """Build the index of the vocabulary in advance, which takes most of a second, and start the guard."""
        self._index()
        shared_guard().warm_up()

    def find(self, constraint: Constraint) -> GrammarState | None:
        """A new state of a cached grammar; None if it must be compiled first."""
        with self._cache_lock:
            compiled = self._cache.get(constraint)
            if compiled is None:
                return None
            self._cache.move_to_end(constraint)
        return self._state(constraint, compiled)

    def clear(self) -> None:
        """Forget all compiled grammars, so that the time of compiling can be measured."""
        with self._cache_lock:
            self._cache.clear()

    def _forget(self, constraint: Constraint) -> None:
        """Drop a failed grammar from the cache: all copies of its matcher share the lexer whose limit was reached."""
        with self._cache_lock:
            self._cache.pop(constraint, None)

    def compile(self, constraint: Constraint) -> GrammarState:
        """A new state of a grammar, compiled if necessary; not to be called on the model's thread.

        It takes milliseconds, and up to a second for the first grammar and for the largest.

        Raises:
            GrammarError: the constraint cannot be compiled; the message is the compiler's.
        """
        state = self.find(constraint)  # another thread may have compiled it meanwhile
        if state is not None:
            return state
        index = self._index()
        start = time.thread_time()
        matcher = compile_constraint(constraint, index)
        may_repeat, checks = False, None
        if self._is_strict and isinstance(constraint, JsonSchemaConstraint):
            grammar = check_constraint(constraint)
            may_repeat = may_repeat_keys(schema_of_grammar(grammar))
            checks = checks_of_grammar(grammar)
        compiled = _Compiled(matcher, time.thread_time() - start, may_repeat, checks)
        with self._cache_lock:
            self._cache[constraint] = compiled
            while len(self._cache) > 1 and self._is_full():
                self._cache.popitem(last=False)
        return self._state(constraint, compiled)

    def _is_full(self) -> bool:
        seconds = sum(compiled.seconds for compiled in self._cache.values())
        return len(self._cache) > self._cache_size or seconds > self._cache_seconds

    def _state(self, constraint: Constraint, compiled: _Compiled) -> GrammarState:
        name = CONSTRAINT_NAMES[type(constraint)]
        parts = compiled.matcher.deep_copy(), self._executor, partial(self._forget, constraint), name
        state = GrammarState(*parts)
        if compiled.may_repeat_keys:
            state = UniqueKeysState(KeyHistory(self._tokenizer, self._quote_tokens()), *parts)
        if compiled.checks is None:
            return state
        return CheckedState(state, AnswerHistory(self._tokenizer, compiled.checks), -(-self._vocab_size // 32))

    def _quote_tokens(self) -> QuoteTokens:
        with self._index_lock:
            if self._quotes is None:
                self._quotes = QuoteTokens(self._tokenizer)
            return self._quotes

    def _index(self) -> llguidance.LLTokenizer:
        with self._index_lock:
            if self._ll_tokenizer is None:
                assert self._vocabulary is not None, "it is there until the index is built"
                self._ll_tokenizer = llguidance.LLTokenizer(
                    self._vocabulary,
                    n_vocab=self._vocab_size,
                    eos_token=list(self._tokenizer.eos_token_ids),
                )
                self._vocabulary = None  # megabytes
            return self._ll_tokenizer


def grammar_vocabulary(tokenizer_json: str, vocab_size: int) -> str:
    """A tokenizer.json in a form that llguidance reads.

    It has no added tokens without logits, such as a `[PAD]` that was added for training, and SentencePiece's decoder
    in the form that llguidance knows.

    Raises:
        WeightsError: other tokens have no logits.
    """
    content = json.loads(tokenizer_json)
    added = {token["id"] for token in content["added_tokens"]}
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocab_size]
    if content["model"]["type"] != "Unigram":
        vocabulary = content["model"]["vocab"]
        content["model"]["vocab"] = {
            piece: number for piece, number in vocabulary.items() if number < vocab_size or number not in added
        }
        numbers = content["model"]["vocab"].values()
    else:
        numbers = range(len(content["model"]["vocab"]))
    if (largest := max(numbers, default=0)) >= vocab_size:
        raise WeightsError(
            f"tokenizer.json has the token id {largest}, and the model has logits for {vocab_size} tokens: check that "
            "both are of the same model"
        )
    if (content.get("decoder") or {}).get("type") == "Metaspace":
        replaced = {"type": "Replace", "pattern": {"String": content["decoder"]["replacement"]}, "content": " "}
        content["decoder"] = {"type": "Sequence", "decoders": [replaced, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(content)


class _Compiled(NamedTuple):
    """A grammar in the cache. The matcher stays at its start and is copied."""

    matcher: llguidance.LLMatcher
    seconds: float
    may_repeat_keys: bool
    checks: AnswerChecks | None
