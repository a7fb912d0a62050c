"""The words that the front of the package and every engine share.

All values are immutable, so that they may cross threads.

    request = GenerationRequest("id-1", (1, 2, 3), SamplingParams(max_tokens=8))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from serving.constraints import Constraint


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # the model's end token, a stop string, or the grammar is complete
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # the caller went away


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token.

    Args:
        max_tokens: tokens to generate at most, the end token not counted.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: nucleus mass kept, in (0, 1].
        top_k: number of tokens kept; None keeps all.
        min_p: tokens less likely than this share of the likeliest one are dropped, in [0, 1].
        repetition_penalty: positive logits of tokens in prompt or output are divided by it, negative ones
            multiplied; in [0.01, 10], and 1 changes nothing (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted from the logit of each token in the output, in [-2, 2].
        frequency_penalty: subtracted from a token's logit once for each time it is in the output, in [-2, 2].
        min_tokens: no end token before so many, unless the constraint allows nothing else.
        seed: same seed, same sample; None draws a fresh one. 0 is a seed like any other.
        stop: strings that end the generation; they are not part of the text returned.
        logprobs: None for none; n for the log probability of each token chosen and of the n likeliest ones,
            of the model's own distribution before penalties, temperature and constraint. At most 20.
        choice_logprobs: whether `TokenPass.choice_logprobs` is wanted of an engine that knows it.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    choice_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to be continued.

    Args:
        request_id: unique among the requests in flight.
        prompt_token_ids: what the model reads, BOS included when the model wants one.
        sampling: how to choose tokens.
        constraint: what the output must match; None is free text.
        adapter: name of a LoRA adapter that the engine has; None is the plain model.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None
    adapter: str | None = None


CHOSEN: Final = "chosen"  # the source of a token that the model chose itself


@dataclass(frozen=True, slots=True)
class TokenPass:
    """The tokens that one forward pass added to an answer, and the drafts that it verified.

    Args:
        at: seconds since the engine accepted the request.
        sources: where each token came from: the name of a drafter's source for accepted drafts, or `CHOSEN`.
        drafted: where each draft came from; the accepted ones come first.
        num_accepted: drafts that were right; the end token may be one of them.
        seconds: how long the step took in which the pass was; 0 if the engine does not know.
        num_rows: tokens that this step computed, of all requests; 0 if the engine does not know.
        choice_logprobs: log probability of each token among those that penalties and constraint left to choose from,
            at a temperature of 1: 0 for a forced token. Within about 0.01, because not all logits may have been
            computed. Empty where nobody asked, or the engine does not know.
    """

    at: float
    sources: tuple[str, ...]
    drafted: tuple[str, ...] = ()
    num_accepted: int = 0
    seconds: float = 0.0
    num_rows: int = 0
    choice_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What one request cost. Times in seconds since the engine accepted it."""

    input_token_count: int
    output_token_count: int
    model_passes: int  # forward passes that this request took part in, prefill included
    cached_token_count: int  # prompt tokens whose KV was reused
    time_to_first_token: float | None
    total_time: float
    draft_token_count: int = 0
    accepted_token_count: int = 0
    queue_time: float | None = None  # until the first step with this request began; None if the engine does not know
    passes: tuple[TokenPass, ...] = ()  # those that gave a token or verified drafts, where the engine knows them

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole time, waiting and prefill included."""
        return self.output_token_count / self.total_time if self.total_time > 0 else 0.0

    @property
    def drafted_by_kind(self) -> dict[str, int]:
        """Numbers of drafts by the name of their source; empty for an engine that does not know it."""
        return dict(Counter(kind for one in self.passes for kind in one.drafted))

    @property
    def accepted_by_kind(self) -> dict[str, int]:
        """Numbers of accepted drafts by the name of their source, without those of which none was accepted."""
        return dict(Counter(kind for one in self.passes for kind in one.drafted[: one.num_accepted]))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of probabilities at one place of the output.

    Args:
        token_id: the token that was chosen.
        logprob: its log probability.
        top: (token id, log probability) of the likeliest tokens, likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A delta. The texts of all deltas joined are the whole text; the last has a finish reason.

    A delta never ends inside a character and never holds a part of a stop string. `token_ids`
    may be empty (text that was held back) and `text` may be empty (text is being held back).
    `logprobs` has one entry for each of `token_ids` where the request asked for them, else none.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    metrics: RequestMetrics | None = None  # on the last delta
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Blocks are 0 for an engine that has none of its own."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    step_seconds: Mapping[str, float] = field(default_factory=dict)  # by what the steps spent them on
