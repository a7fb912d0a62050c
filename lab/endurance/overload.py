"""Sends ten times as many predictions as the server can answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from lab.endurance.client import closed_loop, open_loop
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import SLOTS, Stage
from lab.endurance.workload import marked, quantile

_TIMES: Final = 10
_REFERENCE_SHARE: Final = 0.25  # of the time of the overload


def overload(stage: Stage, amounts: Amounts) -> Result:
    """Let as many clients ask as there are slots, which is all that the server admits, and then overload it."""
    url, questions = stage.server.url, [marked(number) for number in range(100)]
    asyncio.run(closed_loop(url, questions, clients=4, seconds=0, at_least=4))  # warm up
    seconds = max(1.0, _REFERENCE_SHARE * amounts.overload_seconds)
    full = asyncio.run(closed_loop(url, questions, clients=SLOTS, seconds=seconds, at_least=SLOTS))
    rate = SLOTS / (sum(one.seconds for one in full) / len(full))  # by Little's law
    answers = asyncio.run(open_loop(url, questions, rate=_TIMES * rate, seconds=amounts.overload_seconds))
    refused = [one.seconds for one in answers if one.status == "refused"]
    admitted = [one for one in answers if one.status == "succeeded"]
    others = [one for one in (*full, *answers) if one.status not in ("refused", "succeeded")]
    usual = quantile([one.seconds for one in full], 0.99)
    loaded = quantile([one.seconds for one in admitted], 0.99)
    return Result(
        checks=(
            Check("neither answered nor refused", len(others), 0),
            Check("rejections, p99", 1000 * quantile(refused, 0.99), 50, "ms", is_time=True),
            Check("admitted, p99, against all slots in use without overload", loaded / usual, 2, "×", is_time=True),
        ),
        about={
            "predictions a second that the server can answer": round(rate, 1),
            "predictions": len(answers),
            "refused": len(refused),
            "admitted": len(admitted),
            "admitted p99 without overload, s": round(usual, 3),
            "admitted p99 with overload, s": round(loaded, 3),
        },
        losses=tuple(f"{count} × {error}" for error, count in Counter(one.error for one in others).most_common(5)),
    )
