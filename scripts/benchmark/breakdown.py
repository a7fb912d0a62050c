"""Where a request's time goes.

Owns: the split, from what each request reports and what a pass of that many tokens costs by itself. An
estimate: passes are priced by the fitted line, and what is left over is everything that is not the model.
Knows nothing of drawing.

    where_time_goes(runs, passes, "paged")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from scripts.benchmark.measure import Run
from scripts.benchmark.peers import OURS
from scripts.benchmark.protocol import Reply
from scripts.benchmark.summary import good, of
from scripts.benchmark.workloads import Workload


def where_time_goes(
    runs: Sequence[Run], passes: Mapping[str, Any] | None, engine: str, workload: str = Workload.ONE_NEW
) -> dict[str, float]:
    """Mean milliseconds a request; our own engine's are split further when passes were measured."""
    replies = [reply for reply in good(of(runs, workload, engine)) if reply.ttft is not None]
    if not replies:
        return {}
    until_first = 1000 * fmean(reply.ttft or 0.0 for reply in replies)
    after_first = 1000 * fmean(reply.e2e for reply in replies) - until_first
    if engine != OURS or passes is None or workload not in (Workload.ONE_NEW, Workload.ONE_SEEN):
        return {"until the first token": until_first, "after it": after_first}
    prefill = fmean(_prefill_ms(reply, passes) for reply in replies)
    decode = fmean(_decode_ms(reply, passes) for reply in replies)
    return {
        "prefill pass": prefill,
        "queue, grammar compilation": until_first - prefill,
        "decode passes": decode,
        "schedule, draft, grammar, text": after_first - decode,
    }


def overhead_share(split: Mapping[str, float]) -> float | None:
    """What decoding spends outside the model, over the passes."""
    decode = split.get("decode passes")
    return split["schedule, draft, grammar, text"] / decode if decode else None


def _prefill_ms(reply: Reply, passes: Mapping[str, Any]) -> float:
    """By tokens, between a small pass and the measured one of 600 tokens."""
    tokens, fit = reply.input_tokens - reply.cached_tokens, passes["fit"]
    if tokens <= 64:
        return float(fit["a_ms"] + fit["b_ms"] * tokens)
    return float(passes["prefill_600_ms"]) * tokens / 600


def _decode_ms(reply: Reply, passes: Mapping[str, Any]) -> float:
    """Each pass after the first: a, and b for each token in it, rejected drafts included."""
    count = max(0, reply.passes - 1)
    rows = count + reply.drafted
    return float(passes["fit"]["a_ms"] * count + passes["fit"]["b_ms"] * rows)
