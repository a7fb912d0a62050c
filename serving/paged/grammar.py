"""Which tokens a grammar lets come next.

Owns: llguidance, for this engine. Knows nothing of logits or of requests. A grammar is Lark text in
llguidance's dialect; its state is moved by `accept` and `rollback` and never by a token that it refuses.

    grammar = GrammarCompiler(tokenizer, vocab_size=49152).compile('start: "yes" | "no"')
    grammar.accept(token_ids)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import llguidance
import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError
from serving.text import Tokenizer


class GrammarState:
    """One request's place in a grammar (`request.Grammar`).

    The end token counts as a token of the grammar: it is accepted where the text may end.

    Raises:
        GrammarError: from any method, when llguidance gives up (the grammar is too ambiguous for its
            limits, say). The state is of no use afterwards.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, executor: llguidance.LLExecutor, give_up: Callable[[], None]
    ) -> None:
        self._matcher = matcher
        self._executor = executor
        self._give_up = give_up

    @property
    def is_complete(self) -> bool:
        """Nothing but the end token may follow, or it has been accepted."""
        return bool(self._matcher.is_stopped())

    def accept(self, token_ids: list[int]) -> int:
        """Consume the longest allowed prefix of `token_ids`; return its length."""
        count: int = self._matcher.try_consume_tokens(token_ids)
        if count < len(token_ids):
            self._check()
        return count

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` that were accepted."""
        if not self._matcher.rollback(num_tokens):
            self._check()

    def forced_tokens(self) -> list[int]:
        """Tokens of the text that must come next, as the tokenizer would write it; often empty."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Set the bit of every token that may come next and clear the others; 32 tokens a word."""
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        self._check()

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """The same for a row here, and one after each of `token_ids` as far as they may follow.

        bitmasks: [1 + len(token_ids), words]; rows behind a token that is refused are left as they are.
        """
        if not token_ids:
            return self.fill_bitmask(bitmasks[0])
        self._executor.unsafe_compute_mask_ptr_with_draft_token(
            [(self._matcher, 0, token_ids)], bitmasks.ctypes.data, bitmasks.strides[0], len(bitmasks)
        )
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._give_up()
            reason = self._matcher.get_error().partition("\n")[0]
            raise GrammarError(f"the grammar cannot be followed further: {reason}; simplify it")


class GrammarCompiler:
    """Compiles grammars, and remembers those used last. Safe to use from several threads.

    Args:
        tokenizer: what the model writes with.
        vocab_size: width of the model's logits; ids past the tokenizer's own are never allowed.
        cache_size: compiled grammars to keep.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, cache_size: int = 64) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache_size = cache_size
        self._cache: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._cache_lock = threading.Lock()  # for moments
        self._compile_lock = threading.Lock()  # for milliseconds
        self._ll_tokenizer: llguidance.LLTokenizer | None = None
        self._executor = llguidance.LLExecutor(1)  # rows of a request come one after the other

    def warm_up(self) -> None:
        """Build the vocabulary's index, which takes most of a second, before somebody waits for it."""
        with self._compile_lock:
            self._index()

    def find(self, text: str) -> GrammarState | None:
        """A fresh state of a grammar compiled before; None says that `compile` is needed."""
        with self._cache_lock:
            matcher = self._cache.get(text)
            if matcher is None:
                return None
            self._cache.move_to_end(text)
        return self._state(text, matcher)

    def _forget(self, text: str) -> None:
        """Copies of a matcher share its lexer, and so the limit of its states: reached once, for all."""
        with self._cache_lock:
            self._cache.pop(text, None)

    def compile(self, text: str) -> GrammarState:
        """A fresh state. Milliseconds, up to a second for the first: not for the model's thread.

        Raises:
            GrammarError: with the compiler's message.
        """
        with self._compile_lock:
            state = self.find(text)  # somebody else may have asked for the same meanwhile
            if state is not None:
                return state
            matcher = self._compile(text)
        with self._cache_lock:
            self._cache[text] = matcher
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return self._state(text, matcher)

    def _state(self, text: str, matcher: llguidance.LLMatcher) -> GrammarState:
        return GrammarState(matcher.deep_copy(), self._executor, partial(self._forget, text))

    def _compile(self, text: str) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(
            self._index(), llguidance.LLMatcher.grammar_from_lark(text), log_level=0
        )
        if matcher.is_error():
            raise GrammarError(f"the grammar does not compile: {matcher.get_error()}")
        return matcher

    def _index(self) -> llguidance.LLTokenizer:
        if self._ll_tokenizer is None:
            self._ll_tokenizer = llguidance.LLTokenizer(
                self._tokenizer.to_json(),
                n_vocab=self._vocab_size,
                eos_token=list(self._tokenizer.eos_token_ids),
            )
        return self._ll_tokenizer
