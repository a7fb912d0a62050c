"""Writes a plan as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.plan.memory_budget import Memory, ModelShape
from pipeline.plan.speed import PRICES_FROM, Fit, Load

_COLUMNS = ("GPU", "fits", "requests at once", "ms/token alone", "ms/token", "answer s", "answers/s", "$/1,000")


def print_plan(
    shape: ModelShape, memory: Memory, load: Load, fits: Sequence[Fit], price: float | None, console: Console
) -> None:
    """Print the model's memory, and a table with one row per card; `price` is in dollars per second."""
    console.print(
        f"{shape.name}: {shape.num_parameters / 1e9:.3g} B parameters, {shape.weight_bytes:,} bytes of weights, "
        f"{memory.kv_per_token:,} bytes of KV a token, {memory.adapters:,} for adapters, "
        f"{memory.workspace:,} of workspace, {memory.process:,} for the process"
    )
    table = Table(title=f"{load.prompt_tokens} prompt + {load.answer_tokens} answer tokens, context {load.context:,}")
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading in ("GPU", "fits") else "right")
    for fit in fits:
        table.add_row(fit.gpu.name, *_cells(fit, price))
    console.print(table)
    console.print(
        "Times are lower bounds from bandwidth and arithmetic (roofline), with as many requests as fit, at most 256; "
        f"engines are slower. Prices: {PRICES_FROM}."
    )
    for fit in fits:
        if fit.fits:
            concurrency = f"{fit.max_concurrency:.2f}x"
            console.print(
                f"{fit.gpu.name}: Maximum concurrency for {load.context:,} tokens per request: {concurrency}"
                + (f" ({fit.gpu.note})" if fit.gpu.note else "")
            )


def _cells(fit: Fit, price: float | None) -> list[str]:
    if not fit.fits:
        largest = (
            f"no: context up to {fit.largest_context:,}" if fit.largest_context else "no: the weights alone do not"
        )
        return [largest, *["–"] * 6]
    cost = fit.cost_per_thousand(fit.gpu.price if price is None else price)
    return [
        "yes",
        f"{math.floor(fit.max_concurrency):,}",
        f"{1e3 * fit.time_per_token_alone:.2f}",
        f"{1e3 * fit.time_per_token:.2f}",
        f"{fit.answer_seconds:.3f}",
        f"{fit.answers_per_second:,.0f}",
        "–" if cost is None else f"{cost:.4f}",
    ]


def as_json(shape: ModelShape, memory: Memory, load: Load, fits: Sequence[Fit], price: float | None) -> dict[str, Any]:
    """The plan as a JSON object, with unrounded numbers."""
    return {
        "model": {name: getattr(shape, name) for name in shape.__slots__},
        "memory_bytes": memory.as_json(),
        "load": {name: getattr(load, name) for name in load.__slots__},
        "prices": PRICES_FROM,
        "gpus": [
            {
                "name": fit.gpu.name,
                "memory_mib": fit.gpu.memory_mib,
                "note": fit.gpu.note,
                **{name: getattr(fit, name) for name in fit.__slots__ if name != "gpu"},
                "dollars_per_thousand": fit.cost_per_thousand(fit.gpu.price if price is None else price),
            }
            for fit in fits
        ],
    }
