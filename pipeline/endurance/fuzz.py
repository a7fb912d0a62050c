"""Gives random inputs to everything that reads what callers, models and files say."""

from __future__ import annotations

import random
import time
from typing import Any

from pipeline.endurance.fuzz_targets import Target, targets
from pipeline.endurance.row import Amounts, Check, Result
from pipeline.endurance.stage import Stage


def fuzz(stage: Stage, amounts: Amounts) -> Result:
    """Each target gets random inputs, and long ones; only the errors that it promises may leave it."""
    checks: list[Check] = []
    losses: list[str] = []
    found = targets(stage)
    for number, target in enumerate(found):
        rng = random.Random(f"fuzz {target.name}")
        uncaught = [loss for _ in range(amounts.fuzz) if (loss := _try(target, target.make(rng))) is not None]
        slowest = 0.0
        for _ in range(amounts.long_texts):
            case = target.make_long(rng)
            began = time.perf_counter()
            uncaught += [loss] if (loss := _try(target, case)) is not None else []
            slowest = max(slowest, time.perf_counter() - began)
        checks.append(Check(f"{target.name}: uncaught errors", len(uncaught), 0))
        checks.append(Check(f"{target.name}: slowest of 64 KiB", 1000 * slowest, 50, "ms", is_time=True))
        losses += [f"{target.name}: {loss}" for loss in uncaught[:2]]
        stage.progress((number + 1) / len(found))
    return Result(
        checks=tuple(checks),
        about={"cases of each": amounts.fuzz, "of 64 KiB": amounts.long_texts},
        losses=tuple(losses),
    )


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
