"""The command line of scripts/train_adapter."""

from __future__ import annotations

import signal
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pipeline.train.errors import TrainingError
from pipeline.train.optimizer import OPTIMIZERS, default_rate
from pipeline.train.packing import Packs, tokenize_cases
from pipeline.train.record import RunRecord, describe_data
from pipeline.weights.awq_search_result import load_search_result
from pipeline.weights.console import INTERRUPTED
from pipeline.weights.default_weights import base_or_default
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from pipeline.weights.sixteen_bits import LINEAR_LAYERS
from serving.devices import keep_freed_memory
from tasks.errors import TaskError

if TYPE_CHECKING:
    from pipeline.train.lora_model import LoraModel
    from pipeline.train.trainer import TrainSettings

app = typer.Typer(add_completion=False)
console = Console()


@app.command()
def train(
    data: Annotated[
        Path, typer.Option(help="folder of train.jsonl and validation.jsonl, with lines as scripts/evaluate takes them")
    ] = Path("build/data"),
    base: Annotated[
        Path | None, typer.Option(help="unquantized checkpoint; by default that of the default weights")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="task file that says how the model is asked; default: that of the base's folder")
    ] = None,
    output: Annotated[Path, typer.Option(help="folder for the adapter, record and checkpoint")] = Path("build/adapter"),
    minutes: Annotated[
        float, typer.Option(min=0.01, help="limit of the run, over which the learning rate decays")
    ] = 90.0,
    epochs: Annotated[float, typer.Option(min=0.001, help="another limit of the run")] = 3.0,
    rate: Annotated[
        float | None, typer.Option(help="peak learning rate; default: 1e-3, with muon by the size of the base")
    ] = None,
    optimizer: Annotated[str, typer.Option(help=f"one of {', '.join(OPTIMIZERS)}")] = "adamw",
    rank: Annotated[int, typer.Option(min=1, help="rank of the adapter; 24 takes less than 16 MB in fp16")] = 24,
    alpha: Annotated[int, typer.Option(help="scaling is alpha / rank")] = 48,
    targets: Annotated[str, typer.Option(help="linear layers to change, with commas")] = ",".join(LINEAR_LAYERS),
    packs: Annotated[int, typer.Option(min=1, help="packs in a step, each with examples that begin alike")] = 6,
    branches: Annotated[int, typer.Option(min=1, help="limit of examples in a pack")] = 8,
    max_tokens: Annotated[int, typer.Option(help="limit of a pack; longer examples are left out")] = 4096,
    validation: Annotated[int, typer.Option(help="number of validation examples")] = 128,
    limit: Annotated[int | None, typer.Option(help="number of examples to use, from the first")] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16 where the hardware has it")] = "float32",
    workers: Annotated[
        int | None, typer.Option(min=1, help="threads; default: one for each core on a CPU, otherwise 1")
    ] = None,
    init: Annotated[Path | None, typer.Option(help="start from this adapter")] = None,
    search: Annotated[
        Path | None,
        typer.Option(help="train with four-bit weights, rounded as by this search result of scripts/quantize_awq"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the checkpoint in --output")] = False,
) -> None:
    """Train a LoRA adapter of linear layers, with the loss on answers only."""
    from pipeline.train.lora_model import LoraModel  # PEFT and transformers, which --help does not need
    from pipeline.train.trainer import TrainSettings

    keep_freed_memory()
    base = base_or_default(base)
    try:
        if optimizer not in OPTIMIZERS:
            raise typer.BadParameter(f"--optimizer {optimizer}: one of {', '.join(OPTIMIZERS)}")
        torch.manual_seed(seed)
        layers = _layers(targets)
        model = LoraModel.load(base, rank, alpha, torch.device(device), _dtype(dtype, device), layers)
        parameters = sum(parameter.numel() for parameter in model.peft.parameters())
        settings = TrainSettings(
            peak_rate=default_rate(optimizer, parameters) if rate is None else rate,
            packs_per_step=packs,
            minutes=minutes,
            epochs=epochs,
            seed=seed,
            workers=workers or (torch.get_num_threads() if device == "cpu" else 1),
            base_name=base.name,
            optimizer=optimizer,
        )
        if init is not None:
            model.load_adapter(init)
        if search is not None:
            model.round_weights(load_search_result(search))
        train_packs, description = _read(data / "train.jsonl", base, task, limit, branches, max_tokens)
        held_out, _ = _read(data / "validation.jsonl", base, task, validation, branches, max_tokens)
        output.mkdir(parents=True, exist_ok=True)
        choices = asdict(settings) | {
            "rank": rank,
            "alpha": alpha,
            "targets": list(layers),
            "branches": branches,
            "device": device,
            "dtype": dtype,
            "init": init and init.name,
            "search": search and f"sha256:{sha256(search)}",
        }
        record = _record(output, choices, description, resume)
        _run(model, train_packs, held_out, output, settings, record, resume)
    except (TrainingError, CheckpointError, TaskError, OSError, typer.BadParameter) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if not record.finished:
        raise typer.Exit(INTERRUPTED)


def _layers(names: str) -> list[str]:
    layers = list(dict.fromkeys(names.split(",")))
    if unknown := [name for name in layers if name not in LINEAR_LAYERS]:
        raise typer.BadParameter(f"--targets: {unknown[0]!r} is no linear layer; there are {', '.join(LINEAR_LAYERS)}")
    return layers


def _dtype(name: str, device: str) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}
    if name not in dtypes:
        raise typer.BadParameter(f"--dtype {name}: float32 or bfloat16")
    if dtypes[name] == torch.bfloat16 and device == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        raise typer.BadParameter(f"--dtype {name}: this CPU has no bf16 arithmetic; use float32")
    return dtypes[name]


def _read(
    path: Path, base: Path, task: Path | None, limit: int | None, branches: int, max_tokens: int
) -> tuple[Packs, dict[str, object]]:
    packs = Packs(tokenize_cases(path, base, task, limit), max_branches=branches, max_tokens=max_tokens)
    left_out = f", {packs.left_out} with over {max_tokens} tokens left out" if packs.left_out else ""
    console.print(f"{path}: {packs.num_examples} examples, {len(packs)} packs{left_out}", soft_wrap=True)
    if not packs.num_examples:
        raise TrainingError(
            f"{path}: all examples have over {max_tokens} tokens; shorten their inputs, or give "
            "scripts/train_adapter a higher --max-tokens"
        )
    return packs, describe_data(path, packs.num_examples)


def _record(output: Path, choices: dict[str, object], data: dict[str, object], resume: bool) -> RunRecord:
    if not resume:
        return RunRecord(choices, [data])
    record = RunRecord.load(output)
    record.settings, record.finished = choices, False
    if record.data[-1]["sha256"] != data["sha256"]:  # start new data from its beginning
        record.data.append(data | {"since_samples": record.samples})
        record.epoch, record.offset = record.epoch + 1, 0
    return record


def _run(
    model: LoraModel,
    packs: Packs,
    held_out: Packs,
    output: Path,
    settings: TrainSettings,
    record: RunRecord,
    resume: bool,
) -> None:
    from pipeline.train.trainer import Trainer

    columns = (BarColumn(), TextColumn("{task.percentage:.1f} %"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("train", total=1.0)

        def report(text: str, progress: float) -> None:
            bar.update(task, completed=progress)
            console.print(f"{datetime.now():%H:%M:%S} {text}", highlight=False, soft_wrap=True)

        trainer = Trainer(model, packs, packs.num_examples, held_out, output, settings, record, report)
        if resume:
            trainer.restore()

        def stop(*_: object) -> None:
            trainer.stop_requested = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        done = trainer.run()
    state = "finished" if done.finished else "stopped; continue with --resume"
    console.print(f"{output}: {state} after {done.samples} examples in {done.seconds / 60:.1f} minutes")
