"""The command line of scripts/train_adapter.

Owns: options, reading the data, progress on the terminal and stopping on a signal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from honeycomb.prompt import build_prompt
from scripts.checkpoint.awq_search_file import load_search_result
from scripts.checkpoint.download import sha256
from scripts.checkpoint.errors import CheckpointError
from scripts.training.adapter_file import load_adapter
from scripts.training.allocator import keep_freed_memory
from scripts.training.errors import AdapterError
from scripts.training.model import LoraLlama
from scripts.training.packing import Example, Packs, TokenizedExample, read_examples, tokenize
from scripts.training.record import RunRecord, describe_data
from scripts.training.trainer import Trainer, TrainSettings

END_TOKEN = "<|im_end|>"
app = typer.Typer(add_completion=False)
console = Console()


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="folder of train and validation.jsonl")] = Path("build/data"),
    base: Annotated[Path, typer.Option(help="unquantized checkpoint")] = Path("weights/base"),
    output: Annotated[Path, typer.Option(help="gets adapter, record, checkpoint")] = Path("build/adapter"),
    minutes: Annotated[float, typer.Option(min=0.01, help="the run ends by then, fully decayed")] = 90.0,
    epochs: Annotated[float, typer.Option(min=0.001, help="the run ends after as many")] = 3.0,
    rate: Annotated[float, typer.Option(help="peak learning rate")] = 1e-3,
    rank: Annotated[int, typer.Option(min=1, help="24 in fp16 stays under 16 MB")] = 24,
    alpha: Annotated[float, typer.Option(help="scaling is alpha / rank")] = 48.0,
    packs: Annotated[int, typer.Option(min=1, help="column sets in a step, 8 questions each")] = 6,
    max_tokens: Annotated[int, typer.Option(help="longer examples are left out")] = 1400,
    validation: Annotated[int, typer.Option(help="held-out examples scored now and then")] = 128,
    limit: Annotated[int | None, typer.Option(help="use only the first examples")] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16 where the hardware has it")] = "float32",
    workers: Annotated[int | None, typer.Option(min=1, help="threads; default: one a core, or 1")] = None,
    init: Annotated[Path | None, typer.Option(help="start from this adapter")] = None,
    search: Annotated[
        Path | None,
        typer.Option(help="train the four-bit weights that this result of scripts/quantize_awq makes"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the checkpoint in --output")] = False,
) -> None:
    """Train a LoRA adapter of all linear layers; loss on the answers only."""
    keep_freed_memory()
    settings = TrainSettings(
        peak_rate=rate,
        packs_per_step=packs,
        minutes=minutes,
        epochs=epochs,
        seed=seed,
        workers=workers or (torch.get_num_threads() if device == "cpu" else 1),
        base_name=base.name,
    )
    try:
        model = LoraLlama.load(base, rank, alpha, torch.device(device), _dtype(dtype, device))
        model.initialize(seed)
        if init is not None:
            load_adapter(model, init)
        if search is not None:
            model.round_weights(load_search_result(search))
        train_packs, described = _read(data / "train.jsonl", base, limit, max_tokens)
        held_out, _ = _read(data / "validation.jsonl", base, validation, max_tokens)
        output.mkdir(parents=True, exist_ok=True)
        choices = asdict(settings) | {
            "rank": rank,
            "alpha": alpha,
            "device": device,
            "dtype": dtype,
            "init": init and init.name,
            "search": search and f"sha256:{sha256(search)}",
        }
        record = _record(output, choices, described, resume)
        _run(model, train_packs, held_out, output, settings, record, resume)
    except (AdapterError, CheckpointError, OSError, typer.BadParameter) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _dtype(name: str, device: str) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}
    if name not in dtypes:
        raise typer.BadParameter(f"--dtype {name}: float32 or bfloat16")
    if dtypes[name] == torch.bfloat16 and device == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        raise typer.BadParameter(f"--dtype {name}: this CPU has no bf16 arithmetic; use float32")
    return dtypes[name]


def _read(path: Path, base: Path, limit: int | None, max_tokens: int) -> tuple[Packs, dict[str, object]]:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    end = tokenizer.token_to_id(END_TOKEN)
    if end is None:
        raise AdapterError(f"{base}: its tokenizer has no {END_TOKEN}; give the default base")

    def encode(examples: Sequence[Example]) -> list[TokenizedExample]:
        return tokenize(
            examples, tokenizer, lambda q, columns: build_prompt(q, columns, "columns-first"), end
        )

    packs = Packs(read_examples(path, limit), encode, max_branches=8, max_tokens=max_tokens)
    console.print(f"{path}: {packs.num_examples} examples, {len(packs)} packs", soft_wrap=True)
    return packs, describe_data(path, packs.num_examples)


def _record(output: Path, choices: dict[str, object], data: dict[str, object], resume: bool) -> RunRecord:
    if not resume:
        return RunRecord(choices, [data])
    record = RunRecord.load(output)
    record.settings, record.finished = choices, False
    if record.data[-1]["sha256"] != data["sha256"]:  # new data: from its beginning
        record.data.append(data | {"since_samples": record.samples})
        record.epoch, record.offset = record.epoch + 1, 0
    return record


def _run(
    model: LoraLlama,
    packs: Packs,
    held_out: Packs,
    output: Path,
    settings: TrainSettings,
    record: RunRecord,
    resume: bool,
) -> None:
    columns = (BarColumn(), TextColumn("{task.percentage:.1f} %"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("train", total=1.0)
        trainer = Trainer(
            model, packs, packs.num_examples, held_out, output, settings, record, _reporter(bar, task)
        )
        if resume:
            trainer.restore()

        def stop(*_: object) -> None:
            trainer.stop_requested = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        done = trainer.run()
    state = "finished" if done.finished else "stopped; go on with --resume"
    console.print(f"{output}: {state} after {done.samples} examples in {done.seconds / 60:.0f} minutes")


def _reporter(bar: Progress, task: object) -> Callable[[str, float], None]:
    def report(text: str, progress: float) -> None:
        bar.update(task, completed=progress)  # type: ignore[arg-type]
        console.print(f"{datetime.now():%H:%M:%S} {text}", highlight=False, soft_wrap=True)

    return report
