"""Counts how often vLLM would have to choose again, for answers of random tokens that schemas' checks follow."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from serving.engines.vllm.choose_again import MOST
from serving.errors import GrammarError
from serving.grammar import answer_checks
from serving.grammar.answer_checks import AnswerChecks
from serving.grammar.checked_state import AnswerHistory, CheckedState, ClosingTokens
from serving.grammar.compiler import GrammarCompiler
from serving.text import Tokenizer
from tasks.bounds import schema_constraint
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR


class RandomAnswers:
    """Writes answers as vLLM would with a model whose next tokens are all as likely."""

    def __init__(self, weights: Path, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_dir(weights)
        self._compiler = GrammarCompiler(self._tokenizer, vocab_size=self._tokenizer.vocab_size)
        self._closing = ClosingTokens(self._tokenizer)
        self._max_tokens = max_tokens
        self._mask = np.zeros(-(-self._tokenizer.vocab_size // 32), np.int32)

    def report(self, schemas: Iterable[Any], each: int) -> dict[str, Any]:
        """How answers ended, and how often they were chosen again; so many for each schema that is checked."""
        ends: Counter[str] = Counter()
        again: Counter[int] = Counter()
        for schema in schemas:
            constraint = schema_constraint(schema, ITEM_SEPARATOR, KEY_SEPARATOR)
            try:
                checks = answer_checks(constraint)
            except GrammarError:
                continue
            for seed in range(each if checks is not None else 0):
                assert checks is not None
                state = self._compiler.compile(constraint)
                assert isinstance(state, CheckedState)
                end, times = self._write(state, checks, random.Random(f"{json.dumps(schema)} {seed}"))
                ends[end] += 1
                again[times] += 1
        return {
            "answers": ends.total(),
            "limit of tokens": self._max_tokens,
            **ends,
            "chosen again": {str(times): again[times] for times in sorted(again)},
        }

    def _write(self, state: CheckedState, checks: AnswerChecks, rng: random.Random) -> tuple[str, int]:
        history, again = AnswerHistory(self._tokenizer, checks), 0
        refused: set[int] = set()
        try:
            for _ in range(self._max_tokens + MOST):
                token = rng.choice(self._allowed(state, history, refused))
                if token in self._tokenizer.eos_token_ids and state.may_end:
                    return "valid", again
                if state.accept([token]):
                    history.add(history.after(token))
                    refused = set()
                    if state.is_complete:
                        return "valid", again
                elif (unmet := state.unmet(token)) is None:
                    return "ended by the grammar", again
                elif again == MOST:
                    raise unmet
                else:
                    refused.add(token)
                    again += 1
        except GrammarError:
            return "a keyword could not be met", again
        return "cut", again

    def _allowed(self, state: CheckedState, history: AnswerHistory, refused: set[int]) -> list[int]:
        """The tokens of the bitmask that vLLM gets."""
        state.fill_bitmask(self._mask)
        every = self._mask.copy()
        words = self._mask.view(np.uint32)
        for token in refused:
            words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        history.refuse(self._mask, self._closing)
        kept = self._mask if self._mask.any() else every
        return [int(one) for one in np.flatnonzero(np.unpackbits(kept.view(np.uint8), bitorder="little"))]
