"""Convert vLLM's outputs for a request to deltas, without end tokens and stop strings, and with metrics.

answer = Answer(request, tokenizer, started=time.monotonic(), speculates=False)
delta = answer.add(request_output)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import FinishReason, GenerationOutput, GenerationRequest, RequestMetrics, TokenLogprob

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput


class Answer:
    """The answer to one request so far.

    Args:
        request: the caller's request.
        tokenizer: of the model.
        started: `time.monotonic()` when the engine accepted the request.
        speculates: whether a step may yield several tokens. vLLM does not count steps: without speculation there are as
            many as tokens, with it as many as outputs, some of which vLLM may have merged.
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

    def add(self, output: RequestOutput) -> GenerationOutput:
        """The delta for one output of vLLM; the last one has a finish reason."""
        completion = output.outputs[0]
        self._num_passes += 1 if self._speculates else len(completion.token_ids)
        self._num_cached = output.num_cached_tokens or self._num_cached
        if self._first is None:
            self._first = time.monotonic() - self._started
        num_remaining = self._request.sampling.max_tokens - self._num_tokens
        new = [token for token in completion.token_ids if token not in self._eos]
        token_ids, text = self._read(new[:num_remaining])
        self._num_tokens += len(token_ids)
        logprobs = self._logprobs(token_ids, completion)
        reason = self._finish_reason(completion.finish_reason)
        if len(new) > num_remaining and reason is None:
            reason = FinishReason.LENGTH  # another token took the place reserved for the end token; see `options`
        if reason is not None:
            self.is_finished = True
            text += self._detokenizer.flush()
        return GenerationOutput(text, token_ids, reason, None if reason is None else self._metrics(), logprobs)

    def _logprobs(self, token_ids: tuple[int, ...], completion: CompletionOutput) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the tokens shown; vLLM gives a dict for each, with the likeliest and the chosen one."""
        count = self._request.sampling.logprobs
        if count is None or not token_ids:
            return ()
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        result = []
        for token_id, entries in zip(token_ids, completion.logprobs, strict=False):  # an end token comes last
            ranked = sorted((entry.rank, other, entry.logprob) for other, entry in entries.items())
            top = tuple((other, logprob) for rank, other, logprob in ranked if rank <= count)
            result.append(TokenLogprob(token_id, entries[token_id].logprob, top))
        return tuple(result)

    def _read(self, token_ids: list[int]) -> tuple[tuple[int, ...], str]:
        """The tokens up to the one that completes a stop string, and their text."""
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
