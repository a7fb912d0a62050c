"""Gives vLLM's scheduler grammars of JSON answers that remember keys, and refuse values that the schema does not allow.

`scheduler_cls` of vLLM's configuration names `grammar_scheduler`. Like `draft_worker`, this file knows parts of vLLM
that are no public interface: `draft_config.WRITTEN_FOR` is the version they were taken from.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import tokenizers
from torch import Tensor
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from serving.errors import GrammarError
from serving.grammar.checked_state import AnswerHistory, ClosingTokens, Violation
from serving.grammar.grammar_state import KeyHistory, QuoteTokens, may_repeat_keys
from serving.grammar.grammar_text import JSON_PREFIX, checks_of_grammar
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

    Args:
        vllm_config: the whole configuration.
        tokenizer: vLLM's, made from the folder that `tokenizer_folder` wrote.
        vocab_size: width of the logits.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        backend = tokenizers.Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        self._own_tokenizer = Tokenizer(backend, eos_token_ids=[self.tokenizer.eos_token_id])
        self._quotes: QuoteTokens | None = None
        self._closing: ClosingTokens | None = None
        self._lock = threading.Lock()

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None) -> Any:
        """Like vLLM's method, which its threads call."""
        grammar = super().compile_grammar(request_type, grammar_spec, stop_token_ids)
        checks = checks_of_grammar(grammar_spec)
        if _may_repeat_keys(grammar_spec):
            with self._lock:
                self._quotes = self._quotes or QuoteTokens(self._own_tokenizer)
            grammar = UniqueKeysGrammar(grammar, KeyHistory(self._own_tokenizer, self._quotes))
        if checks is None:
            return grammar
        with self._lock:
            self._closing = self._closing or ClosingTokens(self._own_tokenizer)
        return CheckedGrammar(grammar, AnswerHistory(self._own_tokenizer, checks), self._closing)


class UniqueKeysGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """A grammar of vLLM that gives no object a key twice.

    Where all keys that the grammar allows are written already, one is repeated: without any allowed token vLLM would
    sample from nothing. The reader of the answer refuses it then.

    Args:
        grammar: at its start.
        keys: of an answer that has not begun.
    """

    def __init__(self, grammar: StructuredOutputGrammar, keys: KeyHistory) -> None:
        self._grammar = grammar
        self._keys: KeyHistory | None = keys  # None once a key was repeated

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`."""
        if not self._grammar.accept_tokens(request_id, tokens):
            return False
        if self._keys is not None:
            states = self._keys.following(tokens)
            self._keys.extend(states)
            if len(states) < len(tokens):
                self._keys = None
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`; drafts that would repeat a key are cut here."""
        valid: list[int] = self._grammar.validate_tokens(tokens)
        return valid if self._keys is None else valid[: len(self._keys.following(valid))]

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.rollback(num_tokens)
        if self._keys is not None:
            self._keys.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, batch_index: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.fill_bitmask(bitmask, batch_index)
        if self._keys is not None:
            row = bitmask[batch_index].numpy()
            before = row.copy()
            self._keys.refuse(row)
            if not row.any():
                row[:] = before

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return bool(self._grammar.is_terminated())

    def reset(self) -> None:
        """See `StructuredOutputGrammar`."""
        raise NotImplementedError("vLLM 0.32 resets no grammar")


class CheckedGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """A grammar of vLLM that allows more than its schema, without tokens that complete a wrong value.

    Some of these tokens stay: see `AnswerHistory.refuse`, and where no other token is left, all do. vLLM cannot choose
    again, so the answer goes on, and its reader refuses it.

    Args:
        grammar: at its start.
        history: of an answer that has not begun.
        closing: of the vocabulary.
    """

    def __init__(self, grammar: StructuredOutputGrammar, history: AnswerHistory, closing: ClosingTokens) -> None:
        self._grammar = grammar
        self._history: AnswerHistory | None = history  # None once a value was wrong
        self._closing = closing

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`."""
        if not self._grammar.accept_tokens(request_id, tokens):
            return False
        if (history := self._history) is not None:
            try:
                for token in tokens:
                    history.add(history.after(token))
            except (Violation, GrammarError):
                self._history = None
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`; drafts that complete a wrong value are cut here."""
        valid: list[int] = self._grammar.validate_tokens(tokens)
        if self._history is None:
            return valid
        state, count = self._history.last, 0
        with contextlib.suppress(Violation, GrammarError):
            while count < len(valid):
                state = self._history.after(valid[count], state)
                count += 1
        return valid[:count]

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.rollback(num_tokens)
        if self._history is not None:
            self._history.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, batch_index: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._grammar.fill_bitmask(bitmask, batch_index)
        if self._history is not None:
            row = bitmask[batch_index].numpy()
            before = row.copy()
            with contextlib.suppress(GrammarError):
                self._history.refuse(row, self._closing)
            if not row.any():
                row[:] = before

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return bool(self._grammar.is_terminated())

    def reset(self) -> None:
        """See `StructuredOutputGrammar`."""
        raise NotImplementedError("vLLM 0.32 resets no grammar")


def _may_repeat_keys(grammar: str) -> bool:
    """Whether a grammar is one of ours of a JSON schema that leaves keys open."""
    if not grammar.startswith(JSON_PREFIX):
        return False
    try:
        return may_repeat_keys(json.loads(grammar.removeprefix(JSON_PREFIX)))
    except ValueError:  # Lark that a caller wrote
        return False
