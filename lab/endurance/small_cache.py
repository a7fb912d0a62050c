"""Gives the engine a quarter of the KV blocks that its requests want, so that it must preempt them."""

from __future__ import annotations

import asyncio
from math import ceil
from statistics import mean
from typing import Final

from lab.endurance.client import ClientResult, ask_all
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import SLOTS, Stage
from lab.endurance.workload import marked

_SHARE: Final = 0.25
_BLOCK_SIZE: Final = 16  # tokens
_MAX_TOKENS: Final = 160  # of an answer; with fewer blocks than the longest request needs, it would be refused


def small_cache(stage: Stage, amounts: Amounts) -> Result:
    """Ask the same questions at once, first with the default cache and then with the small one."""
    columns = (6, 6, 12)
    questions = [
        {**marked(number, num_columns=columns[number % 3]), "max_tokens": _MAX_TOKENS}
        for number in range(amounts.cache)
    ]
    usual = asyncio.run(ask_all(stage.server.url, questions, at_once=SLOTS))
    wanted = [_num_blocks(one) for one in usual if one.metrics]
    longest = max(ceil((one.metrics["input_token_count"] + _MAX_TOKENS) / _BLOCK_SIZE) for one in usual if one.metrics)
    num_blocks = max(longest, int(_SHARE * min(SLOTS, len(questions)) * mean(wanted)))
    with stage.own_server({"NUM_BLOCKS": str(num_blocks), "BLOCK_SIZE": str(_BLOCK_SIZE)}) as server:
        scarce = asyncio.run(ask_all(server.url, questions, at_once=SLOTS))
        stats = stage.stats(server)
    pairs = list(zip(usual, scarce, strict=True))
    lost = [one for one in (*usual, *scarce) if not one.is_as_expected]
    changed = [one for before, one in pairs if one.text != before.text or _num_tokens(one) != _num_tokens(before)]
    return Result(
        checks=(
            Check("predictions lost", len(lost), 0),
            Check("answers whose text or number of tokens differs", len(changed), 0),
            Check("KV blocks lost", num_blocks - stats["num_free_blocks"], 0),
        ),
        about={
            "predictions": len(questions),
            "at once": min(SLOTS, len(questions)),
            "blocks": num_blocks,
            "of those that are wanted, %": round(100 * num_blocks / (min(SLOTS, len(questions)) * mean(wanted))),
            "blocks of one prediction in the mean": round(mean(wanted), 1),
            "largest share of the cache in use": max(one.metrics.get("kv_cache_usage", 0) for one in scarce),
        },
        losses=tuple(f"{one.status}: {one.error}" for one in lost[:5]),
    )


def _num_blocks(answer: ClientResult) -> int:
    return ceil(int(answer.metrics["input_token_count"] + answer.metrics["output_token_count"]) / _BLOCK_SIZE)


def _num_tokens(answer: ClientResult) -> int | None:
    count = answer.metrics.get("output_token_count")
    return None if count is None else int(count)
