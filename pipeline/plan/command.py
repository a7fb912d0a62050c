"""The command line of scripts/plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.plan.memory_budget import cpu_memory, cpu_resident, gpu_memory, has_bfloat16, read_shape
from pipeline.plan.report import as_json, print_plan
from pipeline.plan.speed import GPUS, Load, fit
from pipeline.weights.console import report_errors
from pipeline.weights.default_weights import weights_or_default


def main(
    weights: Annotated[
        Path | None, typer.Argument(help="folder of the checkpoint; default: that of weights.lock", file_okay=False)
    ] = None,
    context: Annotated[int, typer.Option(help="maximum tokens of a request, prompt and answer", min=16)] = 4096,
    prompt_tokens: Annotated[int, typer.Option(help="prompt tokens of a typical request", min=1)] = 500,
    answer_tokens: Annotated[int, typer.Option(help="answer tokens of a typical request", min=1)] = 60,
    tokens_per_pass: Annotated[float, typer.Option(help="tokens per pass with speculation; 1 without", min=1.0)] = 1.0,
    adapters: Annotated[int, typer.Option(help="LoRA adapters in one batch", min=0)] = 0,
    rank: Annotated[int, typer.Option(help="rank of these adapters", min=1)] = 16,
    price: Annotated[float | None, typer.Option(help="dollars per second, instead of the table's", min=0.0)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the plan to this file; - for stdout")] = None,
) -> None:
    """Show which GPUs a model fits on, how many requests each holds, how fast it is and what it costs."""
    console = Console(stderr=json_file == Path("-"), highlight=False, soft_wrap=True)
    with report_errors():
        shape = read_shape(weights_or_default(weights))
        if context > shape.max_context:
            raise typer.BadParameter(
                f"--context {context:,} is above the model's context of {shape.max_context:,}; lower it"
            )
        if prompt_tokens + answer_tokens > context:
            total = prompt_tokens + answer_tokens
            raise typer.BadParameter(f"--context {context:,} is below prompt and answer tokens ({total:,}); raise it")
        memory = gpu_memory(shape, adapter_slots=adapters, rank=rank)
        load = Load(prompt_tokens, answer_tokens, context, tokens_per_pass)
        fits = [fit(shape, memory, card, load) for card in GPUS]
        print_plan(shape, memory, load, fits, price, console)
        cpu = cpu_memory(shape, bfloat16_kv=has_bfloat16())
        resident = cpu_resident(shape, cpu, context) / 1e9
        console.print(f"CPU (ENGINE=paged, this processor): {resident:.2f} GB resident after the first requests")
        if json_file is not None:
            text = json.dumps(as_json(shape, memory, load, fits, price), indent=2)
            print(text) if json_file == Path("-") else json_file.write_text(text + "\n", "utf-8")
