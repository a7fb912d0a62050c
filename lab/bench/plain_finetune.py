"""Fine-tune with transformers and PEFT as a plain script does, to compare `scripts/train_adapter` with.

It takes the same tokens, rank and layers. All else is what such scripts have: padded batches of 16, AdamW with 2e-4,
warm-up and linear decay, bfloat16 where the CPU multiplies it (else float32), three epochs however long they take.

    python -m lab.bench.plain_finetune BASE DATA OUT --epochs 3    # DATA: task.json and train.jsonl of scripts/train
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, get_linear_schedule_with_warmup

from pipeline.train.packing import TokenizedExample, tokenize_cases
from pipeline.weights.sixteen_bits import LINEAR_LAYERS

_BATCH, _RATE, _WARM_UP = 16, 2e-4, 0.03


def batch_tensors(examples: list[TokenizedExample]) -> dict[str, torch.Tensor]:
    """Padded ids, labels and mask, each [B, T] int64; labels of prompts and padding are -100."""
    length = max(len(example.prompt) + len(example.answer) for example in examples)
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, example in enumerate(examples):
        begin, end = len(example.prompt), len(example.prompt) + len(example.answer)
        ids[row, :end] = torch.tensor([*example.prompt, *example.answer])
        labels[row, begin:end], mask[row, :end] = ids[row, begin:end], 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def main(
    base: Annotated[Path, typer.Argument(help="unquantized checkpoint")],
    data: Annotated[Path, typer.Argument(help="folder with task.json and train.jsonl")],
    out: Annotated[Path, typer.Argument(help="folder for the adapter")],
    epochs: int = 3,
    limit: int | None = None,
) -> None:
    """Train, and print the time."""
    torch.manual_seed(0)
    examples = list(tokenize_cases(data / "train.jsonl", base, data / "task.json", limit))
    dtype = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    config = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=list(LINEAR_LAYERS), task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=_RATE)
    steps = epochs * -(-len(examples) // _BATCH)
    schedule = get_linear_schedule_with_warmup(optimizer, int(_WARM_UP * steps), steps)  # type: ignore[no-untyped-call]
    order, started, step = random.Random(0), time.monotonic(), 0
    for _ in range(epochs):
        order.shuffle(examples)
        for start in range(0, len(examples), _BATCH):
            loss = model(**batch_tensors(examples[start : start + _BATCH])).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            seconds = time.monotonic() - started
            print(f"step {step} of {steps}, loss {loss.item():.3f}, {seconds / 60:.1f} min", flush=True)
    model.save_pretrained(out)


if __name__ == "__main__":
    typer.run(main)
