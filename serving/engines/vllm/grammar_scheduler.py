"""Gives vLLM's scheduler grammars of JSON answers that remember keys, and refuse values that the schema does not allow.

`scheduler_cls` of vLLM's configuration names `grammar_scheduler`. Like `draft_worker`, this file knows parts of vLLM
that are no public interface: `draft_config.WRITTEN_FOR` is the version they were taken from.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from serving.engines.vllm.choose_again import begun_of
from serving.errors import GrammarError
from serving.grammar.checked_state import AnswerHistory, AnswerText, ClosingTokens, Violation
from serving.grammar.grammar_state import KeyHistory, QuoteTokens, forbid, may_repeat_keys
from serving.grammar.grammar_text import checks_of_grammar, schema_of_grammar
from serving.text import Tokenizer


def grammar_scheduler(*, vllm_config: Any, structured_output_manager: Any, **rest: Any) -> Scheduler:
    """The scheduler that vLLM would take itself, with our backend of grammars."""
    structured_output_manager.backend = StrictBackend(
        vllm_config, structured_output_manager.tokenizer, vllm_config.model_config.get_vocab_size()
    )
    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return kind(vllm_config=vllm_config, structured_output_manager=structured_output_manager, **rest)


class StrictBackend(GuidanceBackend):  # type: ignore[misc]
    """vLLM's guidance backend, whose grammars of JSON answers also remember keys, and are checked with their schema.

    `tokenizer` is vLLM's, made from the folder that `tokenizer_folder` wrote.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own_tokenizer = Tokenizer.from_transformers(self.tokenizer)
        self._quotes: QuoteTokens | None = None
        self._closing: ClosingTokens | None = None
        self._lock = threading.Lock()

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None) -> Any:
        """Like vLLM's method, which its threads call."""
        grammar = super().compile_grammar(request_type, grammar_spec, stop_token_ids)
        checks = checks_of_grammar(grammar_spec)
        schema = schema_of_grammar(grammar_spec)
        if schema is not None and may_repeat_keys(schema):  # one of ours that leaves keys open
            with self._lock:
                self._quotes = self._quotes or QuoteTokens(self._own_tokenizer)
            grammar = UniqueKeysGrammar(grammar, KeyHistory(self._own_tokenizer, self._quotes))
        if checks is None:
            return grammar
        with self._lock:
            self._closing = self._closing or ClosingTokens(self._own_tokenizer)
        begun = begun_of(grammar_spec)
        checked = CheckedGrammar(
            grammar, AnswerHistory(self._own_tokenizer, checks), self._closing, frozenset(begun.refused)
        )
        checked.accept_tokens("", list(begun.token_ids))
        return checked


class _RememberingGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """A grammar of vLLM at its start, with something that remembers the answer and refuses further tokens.

    Where it refuses all tokens that the grammar allows, all stay: without any vLLM would sample from nothing. The
    answer's reader refuses the answer then.
    """

    def __init__(self, grammar: StructuredOutputGrammar, memory: KeyHistory | AnswerHistory) -> None:
        self._grammar = grammar
        self._memory: Any = memory  # None once a refused token was accepted

    @abstractmethod
    def _num_remembered(self, tokens: list[int]) -> int:
        """Add tokens to the memory up to the first one that it refuses; return how many."""

    @abstractmethod
    def _num_valid(self, tokens: list[int]) -> int:
        """How many of the next tokens the memory does not refuse."""

    @abstractmethod
    def _refuse(self, row: NDArray[np.int32]) -> None:
        """Clear the bits of refused tokens. row: [ceil(V / 32)], lowest bit first."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`."""
        if not self._grammar.accept_tokens(request_id, tokens):
            return False
        if self._memory is not None and self._num_remembered(tokens) < len(tokens):
            self._memory = None
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`; drafts are cut at the first refused one."""
        valid: list[int] = self._grammar.validate_tokens(tokens)
        return valid if self._memory is None else valid[: self._num_valid(valid)]

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.rollback(num_tokens)
        if self._memory is not None:
            self._memory.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, batch_index: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.fill_bitmask(bitmask, batch_index)
        if self._memory is not None:
            row = bitmask[batch_index].numpy()
            before = row.copy()
            self._refuse(row)
            if not row.any():
                row[:] = before

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return bool(self._grammar.is_terminated())

    def reset(self) -> None:
        """See `StructuredOutputGrammar`."""
        raise NotImplementedError("vLLM 0.32 resets no grammar")


class UniqueKeysGrammar(_RememberingGrammar):
    """A grammar of vLLM that gives no object a key twice."""

    def _num_remembered(self, tokens: list[int]) -> int:
        states = self._memory.following(tokens)
        self._memory.extend(states)
        return len(states)

    def _num_valid(self, tokens: list[int]) -> int:
        return len(self._memory.following(tokens))

    def _refuse(self, row: NDArray[np.int32]) -> None:
        self._memory.refuse(row)


class CheckedGrammar(_RememberingGrammar):
    """A grammar of vLLM that allows more than its schema, without tokens that complete a wrong value.

    Some of these tokens stay: see `AnswerHistory.refuse`. vLLM cannot choose again, so the answer goes on, until the
    engine asks for another one (`choose_again.py`).

    Args:
        grammar: at its start.
        history: of an answer that has not begun.
        closing: of the vocabulary.
        refused: tokens that must not follow the first tokens that are accepted.
    """

    def __init__(
        self,
        grammar: StructuredOutputGrammar,
        history: AnswerHistory,
        closing: ClosingTokens,
        refused: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(grammar, history)
        self._closing = closing
        self._first_refused = refused
        self._first: AnswerText | None = None  # behind which they are refused

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`."""
        is_accepted = super().accept_tokens(request_id, tokens)
        if self._first is None and self._memory is not None:
            self._first = self._memory.last
        return is_accepted

    def _num_remembered(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            try:
                self._memory.add(self._memory.after(token))
            except (Violation, GrammarError):
                return count
        return len(tokens)

    def _num_valid(self, tokens: list[int]) -> int:
        state = self._memory.last
        for count, token in enumerate(tokens):
            if state is self._first and token in self._first_refused:
                return count
            try:
                state = self._memory.after(token, state)
            except (Violation, GrammarError):
                return count
        return len(tokens)

    def _refuse(self, row: NDArray[np.int32]) -> None:
        if self._memory.last is self._first:
            forbid(row, self._first_refused)
        with contextlib.suppress(GrammarError):
            self._memory.refuse(row, self._closing)
