"""Gives random inputs to everything that reads what callers, models and files say."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from lab.endurance.fuzz_targets import Target, targets
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage

_MILLISECONDS: Final = 50  # for 64 KiB, on a machine that needs these seconds for the reference
_REFERENCE_SECONDS: Final = 0.0017  # an EPYC (Zen 5)


def fuzz(stage: Stage, amounts: Amounts, make_targets: Callable[[Stage], list[Target]] = targets) -> Result:
    """Each target gets random inputs, and long ones; only the errors that it promises may leave it."""
    checks: list[Check] = []
    losses: list[str] = []
    found = make_targets(stage)
    limit = round(_MILLISECONDS * max(1.0, _reference_seconds() / _REFERENCE_SECONDS), 1)
    for number, target in enumerate(found):
        rng = random.Random(f"fuzz {target.name}")
        uncaught = [loss for _ in range(amounts.fuzz) if (loss := _try(target, target.make(rng))) is not None]
        slowest = 0.0
        for _ in range(amounts.long_texts):
            case = target.make_long(rng)
            loss, first = _timed(target, case)
            uncaught += [loss] if loss is not None else []
            _, second = _timed(target, case)  # other work may have interrupted the first
            slowest = max(slowest, min(first, second))
        checks.append(Check(f"{target.name}: uncaught errors", len(uncaught), 0))
        checks.append(Check(f"{target.name}: the valid case is refused", int(not _is_read(target)), 0))
        checks.append(Check(f"{target.name}: slowest of 64 KiB", 1000 * slowest, limit, "ms", is_time=True))
        losses += [f"{target.name}: {loss}" for loss in uncaught[:2]]
        stage.progress((number + 1) / len(found))
    return Result(
        checks=tuple(checks),
        about={"cases of each": amounts.fuzz, "of 64 KiB": amounts.long_texts},
        losses=tuple(losses),
    )


def _reference_seconds() -> float:
    """The time of a fixed piece of work of the same kind on this machine: JSON, and words counted in Python."""
    text = json.dumps([{"number": number, "text": f"word {number}"} for number in range(5000)])

    def once() -> float:
        began = time.perf_counter()
        Counter(word for item in json.loads(text) for word in item["text"].split())
        return time.perf_counter() - began

    return min(once() for _ in range(10))


def _is_read(target: Target) -> bool:
    """Whether the valid case is; where nothing is, mistakes reach no more than the first check."""
    try:
        target.read(target.valid)
    except target.promised:
        return False
    return True


def _timed(target: Target, case: Any) -> tuple[str | None, float]:
    began = time.perf_counter()
    return _try(target, case), time.perf_counter() - began


def _try(target: Target, case: Any) -> str | None:
    """What went wrong."""
    try:
        target.read(case)
    except target.promised:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return f"{error!r} of {case!r:.300}"
    return None
