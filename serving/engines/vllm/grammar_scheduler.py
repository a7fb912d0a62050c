"""Gives vLLM's scheduler grammars that let no object of a JSON answer have a key twice.

`scheduler_cls` of vLLM's configuration names `grammar_scheduler`. Like `draft_worker`, this file knows parts of vLLM
that are no public interface: `draft_config.WRITTEN_FOR` is the version they were taken from.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import tokenizers
from torch import Tensor
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from serving.grammar.grammar_state import KeyHistory, QuoteTokens, may_repeat_keys
from serving.grammar.grammar_text import JSON_PREFIX
from serving.text import Tokenizer


def grammar_scheduler(*, vllm_config: Any, structured_output_manager: Any, **rest: Any) -> Scheduler:
    """The scheduler that vLLM would take itself, with our backend of grammars."""
    structured_output_manager.backend = UniqueKeysBackend(
        vllm_config, structured_output_manager.tokenizer, vllm_config.model_config.get_vocab_size()
    )
    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return kind(vllm_config=vllm_config, structured_output_manager=structured_output_manager, **rest)


class UniqueKeysBackend(GuidanceBackend):  # type: ignore[misc]
    """vLLM's guidance backend, whose grammars of JSON answers also remember keys.

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
        self._lock = threading.Lock()

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: set[int] | None = None) -> Any:
        """Like vLLM's method, which its threads call."""
        grammar = super().compile_grammar(request_type, grammar_spec, stop_token_ids)
        if not _may_repeat_keys(grammar_spec):
            return grammar
        with self._lock:
            self._quotes = self._quotes or QuoteTokens(self._own_tokenizer)
        return UniqueKeysGrammar(grammar, KeyHistory(self._own_tokenizer, self._quotes))


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


def _may_repeat_keys(grammar: str) -> bool:
    """Whether a grammar is one of ours of a JSON schema that leaves keys open."""
    if not grammar.startswith(JSON_PREFIX):
        return False
    try:
        return may_repeat_keys(json.loads(grammar.removeprefix(JSON_PREFIX)))
    except ValueError:  # Lark that a caller wrote
        return False
