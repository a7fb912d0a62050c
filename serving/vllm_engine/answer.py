"""From vLLM's outputs to our deltas.

Owns: what a delta shows (no end token, no part of a stop string), why an answer ended, and its
metrics. Knows nothing of queues or of event loops.

    answer = Answer(request, tokenizer, started=time.monotonic())
    delta = answer.add(request_output)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput


class Answer:
    """The answer to one request so far.

    Args:
        request: what was asked.
        tokenizer: of the model.
        started: `time.monotonic()` when the engine accepted the request.
        speculates: a pass may bring several tokens. vLLM does not count passes: without speculation they
            are as many as tokens, with it as outputs, of which vLLM may merge some.
    """

    def __init__(
        self, request: GenerationRequest, tokenizer: Tokenizer, *, started: float, speculates: bool
    ) -> None:
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

    def add(self, output: RequestOutput) -> GenerationOutput:
        """The delta for one output of vLLM; the last one has a finish reason."""
        completion = output.outputs[0]
        self._num_passes += 1 if self._speculates else len(completion.token_ids)
        self._num_cached = output.num_cached_tokens or self._num_cached
        if self._first is None:
            self._first = time.monotonic() - self._started
        wanted = self._request.sampling.max_tokens - self._num_tokens
        new = [token for token in completion.token_ids if token not in self._eos]
        token_ids, text = self._read(new[:wanted])
        self._num_tokens += len(token_ids)
        reason = self._finish_reason(completion.finish_reason)
        if len(new) > wanted and reason is None:
            reason = FinishReason.LENGTH  # it took the end token's place and goes on; see `options`
        if reason is not None:
            self.is_finished = True
            text += self._detokenizer.flush()
        return GenerationOutput(text, token_ids, reason, None if reason is None else self._metrics())

    def _read(self, token_ids: list[int]) -> tuple[tuple[int, ...], str]:
        """The tokens up to the one that completes a stop string, and the text they show."""
        shown: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            shown.append(self._detokenizer.push([token_id]))
            if self._detokenizer.stopped_by is not None:
                return tuple(token_ids[:count]), "".join(shown)
        return tuple(token_ids), "".join(shown)

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
