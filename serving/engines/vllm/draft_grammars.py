"""Compile the grammars of requests for the drafter, on a thread of their own, so that no step waits for long.

grammars = DraftGrammars(vocabulary)
state = grammars.begin(text)  # text as vLLM's guidance backend gives it to llguidance
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotReadyError

import llguidance

from serving.errors import GrammarError
from serving.grammar.grammar_limits import parser_limits
from serving.grammar.grammar_state import GrammarState

_PATIENCE = 0.02  # seconds that a step may wait for a grammar; most compile in 2 to 4 ms


class DraftGrammars:
    """Compiled grammars; the most recently used ones are kept. Used from one thread.

    vLLM has accepted the grammars before and checks each draft against its own copy. So a grammar that fails here only
    means worse drafts.

    Args:
        vocabulary: of the model.
        cache_size: number of compiled grammars to keep.
    """

    def __init__(self, vocabulary: llguidance.LLTokenizer, *, cache_size: int = 64) -> None:
        self._vocabulary = vocabulary
        self._cache_size = cache_size
        self._compiled: OrderedDict[str, Future[llguidance.LLMatcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="draft-grammars")
        self._executor = llguidance.LLExecutor(1)

    def begin(self, text: str) -> GrammarState | None:
        """A new state at the start of the grammar; None while it is being compiled, so ask again in the next step.

        Raises:
            GrammarError: it does not compile within the limits.
        """
        future = self._compiled.get(text)
        if future is None:
            future = self._compiled[text] = self._thread.submit(self._compile, text)
            if len(self._compiled) > self._cache_size:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(text)
        try:
            matcher = future.result(timeout=_PATIENCE)
        except NotReadyError:
            return None
        return GrammarState(matcher.deep_copy(), self._executor, lambda: self._forget(text))

    def _compile(self, text: str) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # warms up the first step
        if matcher.is_error():
            raise GrammarError(matcher.get_error().partition("\n")[0])
        return matcher

    def _forget(self, text: str) -> None:
        self._compiled.pop(text, None)
