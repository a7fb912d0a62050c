"""Convert another engine's outputs for a request to deltas, without end tokens and stop strings, and with metrics.

answer = RequestProgress(request, tokenizer, started=time.monotonic(), speculates=False)
delta = answer.add(EngineOutput((5, 6)))
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, TokenLogprob


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What another engine added to an answer.

    Args:
        token_ids: the token ids of this output, end token included.
        finish_reason: stop, length or abort on the last output.
        logprobs: one for each token, if the request asked for them.
        num_cached_tokens: prompt tokens whose KV was reused; 0 if the engine does not say.
    """

    token_ids: Sequence[int]
    finish_reason: str | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    num_cached_tokens: int = 0


class RequestProgress:
    """The answer to one request so far.

    Args:
        request: the caller's request.
        tokenizer: the tokenizer of the model.
        started: `time.monotonic()` when the engine accepted the request.
        speculates: whether a step may yield several tokens. The engines do not count steps: without speculation there
            are as many as tokens, with it as many as outputs, some of which the engine may have merged.
    """

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer, *, started: float, speculates: bool) -> None:
        self._request = request
        self._eos = frozenset(tokenizer.eos_token_ids)
        self._detokenizer = IncrementalDetokenizer(tokenizer, stop=request.sampling.stop)
        self._started = started
        self._speculates = speculates
        self._first: float | None = None
        self.is_finished = False
        self._num_tokens = 0
        self._num_passes = 0
        self._num_cached = 0

    def add(self, output: EngineOutput) -> GenerationOutput:
        """The delta for one output; the last one has a finish reason."""
        self._num_passes += 1 if self._speculates else len(output.token_ids)
        self._num_cached = output.num_cached_tokens or self._num_cached
        if self._first is None:
            self._first = time.monotonic() - self._started
        num_remaining = self._request.sampling.max_tokens - self._num_tokens
        new = [token for token in output.token_ids if token not in self._eos]
        text, token_ids = self._detokenizer.push_to_stop(new[:num_remaining])
        self._num_tokens += len(token_ids)
        logprobs = tuple(output.logprobs or ())[: len(token_ids)]  # an end token comes last
        reason = self._finish_reason(output.finish_reason)
        if len(new) > num_remaining and self._detokenizer.stopped_by is None:
            reason = FinishReason.LENGTH  # another token took the place reserved for the end token
        if reason is not None:
            self.is_finished = True
            text += self._detokenizer.flush()
        return GenerationOutput(text, token_ids, reason, None if reason is None else self._metrics(), logprobs)

    def _finish_reason(self, reason: str | None) -> FinishReason | None:
        if self._detokenizer.stopped_by is not None:
            return FinishReason.STOP
        return None if reason is None else FinishReason(reason)

    def _metrics(self) -> RequestMetrics:
        return RequestMetrics(
            input_token_count=len(self._request.prompt_token_ids),
            output_token_count=self._num_tokens,
            model_passes=self._num_passes,
            cached_token_count=self._num_cached,
            time_to_first_token=self._first,
            total_time=time.monotonic() - self._started,
        )
