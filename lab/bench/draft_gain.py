"""How much drafts gain end to end, by a model of what a pass costs.

A request is a prefill, which gives the first token, and passes after it. Drafts leave the prefill as it is, make the
passes fewer and each of them dearer. So the gain depends on the share of decoding in a request:

    gain = (prefill + (tokens - 1) * one) / (prefill + (passes - 1) * drafted)

Costs on a CPU are measured by `scripts/dev/bench`. Costs on a GPU are computed from the roofline of its data sheet
(Williams et al. 2009), of which an engine is assumed to reach two fifths, as in `scripts/plan`.

    python -m lab.bench.draft_gain docs/results/bench-drafts.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.plan.speed import GPUS, Gpu

EFFICIENCY: Final = 0.4  # assumed, as in scripts/plan
PROMPT: Final = 177  # tokens, the mean of the questions of `one-new`
MOST_ROWS: Final = 33  # a token and the 32 drafts that the bench allows
MISTRAL_BYTES, MISTRAL_WEIGHTS = 3.89e9, 7.24e9  # Mistral-7B in four bits: bytes that a pass reads, number of weights
DRAFTING: Final = 2.4  # milliseconds in which a CPU proposes 44 drafts, measured on a Xeon (docs/benchmarks.md)
ON_GPUS: Final = ("L4", "A100-80", "H100")


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Milliseconds of a prefill, of a pass of one row, and of a pass with drafts."""

    prefill: float
    one: float
    drafted: float

    def decoding_share(self, tokens: float) -> float:
        """The share of a request's time after its first token, without drafts."""
        decoding = (tokens - 1) * self.one
        return decoding / (self.prefill + decoding)

    def gain(self, tokens: float, passes: float) -> float:
        """How many times as fast a request of so many tokens is if drafts make it `passes` passes, prefill included."""
        return (self.prefill + (tokens - 1) * self.one) / (self.prefill + (passes - 1) * self.drafted)


def measured_costs(result: Mapping[str, Any]) -> PassCosts:
    """Costs of vLLM without drafts and with ours, from a result of the workload `one-new`.

    Raises:
        KeyError: it has not both engines.
    """
    times, engines = result["time_ms"], result["engines"]
    one, drafted = (times[name]["after it"] / (engines[name]["passes"] - 1) for name in ("vllm", "vllm-drafts"))
    return PassCosts(times["vllm"]["until the first token"], one, drafted)


def gpu_costs(gpu: Gpu, rows: int = MOST_ROWS) -> PassCosts:
    """Costs of Mistral-7B in four bits on one card, computed."""

    def milliseconds(rows: int) -> float:
        return 1000 * max(MISTRAL_BYTES / gpu.bandwidth, 2 * MISTRAL_WEIGHTS * rows / gpu.flops) / EFFICIENCY

    return PassCosts(milliseconds(PROMPT), milliseconds(1), milliseconds(rows) + DRAFTING)


def main(files: list[str]) -> None:
    """Print a table of the results' models, and of Mistral-7B with the tokens and passes of the first."""
    results = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    print("| model | prefill, ms | pass of one row, ms | pass with drafts, ms | decoding | passes | gain |")
    print("|---|---|---|---|---|---|---|")
    for result in results:
        name = f"{Path(result['weights']['folder']).name}, measured"
        _print(name, measured_costs(result), *_tokens_and_passes(result))
    for gpu in GPUS:
        if gpu.name in ON_GPUS:
            _print(f"Mistral-7B on one {gpu.name}, computed", gpu_costs(gpu), *_tokens_and_passes(results[0]))


def _tokens_and_passes(result: Mapping[str, Any]) -> tuple[float, float]:
    return result["engines"]["vllm"]["passes"], result["engines"]["vllm-drafts"]["passes"]


def _print(name: str, costs: PassCosts, tokens: float, passes: float) -> None:
    share, gain = costs.decoding_share(tokens), costs.gain(tokens, passes)
    cells = [f"{ms:.3g}" for ms in (costs.prefill, costs.one, costs.drafted)]
    print(f"| {name} | {' | '.join(cells)} | {100 * share:.0f} % | {passes:.3g} | {gain:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
