"""Compile grammars, and track which tokens they allow next.

grammar = GrammarCompiler(tokenizer, vocab_size=49152).compile(LarkConstraint('start: "yes" | "no"'))
grammar.accept(token_ids)
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import llguidance
import numpy as np
from numpy.typing import NDArray

from serving.constraints import Constraint
from serving.errors import GrammarError
from serving.grammar import compile_constraint
from serving.grammar.guard import shared_guard
from serving.text import Tokenizer


class GrammarState:
    """The state of one request's grammar: see `drafter.Grammar`.

    The end token is accepted where the text may end. Tokens that are not allowed leave the state unchanged.

    Args:
        matcher: llguidance's state.
        executor: computes several bitmasks at a time.
        on_failure: called when llguidance fails.

    Raises:
        GrammarError: from any method, if llguidance fails, for example because the grammar is too ambiguous for its
            limits. The state cannot be used afterwards.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, executor: llguidance.LLExecutor, on_failure: Callable[[], None]
    ) -> None:
        self._matcher = matcher
        self._executor = executor
        self._on_failure = on_failure

    @property
    def is_complete(self) -> bool:
        """Whether only the end token may follow, or it has been accepted."""
        return bool(self._matcher.is_stopped())

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
            raise GrammarError(f"the grammar failed after the text so far: {reason}; simplify it")


class GrammarCompiler:
    """Compiles constraints, and caches the most recently used ones. Safe to use from several threads.

    Args:
        tokenizer: of the model.
        vocab_size: width of the model's logits; ids beyond the tokenizer's are never allowed.
        cache_size: number of compiled grammars to keep.
        cache_seconds: processor time that compiling all of those took. It bounds their memory, which llguidance
            does not report: 0.03 to 0.15 MB for a millisecond.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, cache_size: int = 64, cache_seconds: float = 2.0
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache_size = cache_size
        self._cache_seconds = cache_seconds
        self._cache: OrderedDict[Constraint, _Compiled] = OrderedDict()
        self._cache_lock = threading.Lock()
        self._index_lock = threading.Lock()
        self._ll_tokenizer: llguidance.LLTokenizer | None = None
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
        compiled = _Compiled(compile_constraint(constraint, index), time.thread_time() - start)
        with self._cache_lock:
            self._cache[constraint] = compiled
            while len(self._cache) > 1 and self._is_full():
                self._cache.popitem(last=False)
        return self._state(constraint, compiled)

    def _is_full(self) -> bool:
        seconds = sum(compiled.seconds for compiled in self._cache.values())
        return len(self._cache) > self._cache_size or seconds > self._cache_seconds

    def _state(self, constraint: Constraint, compiled: _Compiled) -> GrammarState:
        return GrammarState(compiled.matcher.deep_copy(), self._executor, partial(self._forget, constraint))

    def _index(self) -> llguidance.LLTokenizer:
        with self._index_lock:
            if self._ll_tokenizer is None:
                self._ll_tokenizer = llguidance.LLTokenizer(
                    self._tokenizer.to_json(),
                    n_vocab=self._vocab_size,
                    eos_token=list(self._tokenizer.eos_token_ids),
                )
            return self._ll_tokenizer


class _Compiled(NamedTuple):
    """A grammar in the cache. The matcher stays at its start and is copied."""

    matcher: llguidance.LLMatcher
    seconds: float
