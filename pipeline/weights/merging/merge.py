"""Merge a PEFT LoRA adapter into a checkpoint, shard by shard; an interrupted merge continues."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.weights.console import byte_bar, say
from pipeline.weights.end_tokens import tell_end_tokens
from pipeline.weights.errors import CheckpointError

from .companions import check_tokenizer, write_companions, write_config
from .differences import Sums, differences
from .lora_adapter import LoraAdapter
from .merge_plan import MergePlan, plan_merge
from .merge_state import MergeState, keep_only, working_folder
from .shard_plan import parse_size, plan_shards, write_index
from .sources import adapter_files, base_config, open_base
from .tensor_writer import TensorWriter


class Rounding(Enum):
    """How the base was rounded while the adapter was trained."""

    NONE = None
    NF4 = True  # with double quantization
    NF4_SINGLE = False  # bnb_4bit_use_double_quant=False


@dataclass(frozen=True, slots=True)
class _Shards:
    files: dict[str, list[str]]
    plan: MergePlan

    def tensors(self, file: str) -> dict[str, Any]:
        return {name: self.plan.tensors[name] for name in self.files[file]}

    def nbytes(self, file: str) -> int:
        return sum(tensor.spec.nbytes for tensor in self.tensors(file).values())


def merge_folder(
    base: Path, adapter: Path, output: Path, rounding: Rounding = Rounding.NONE, shard_size: str | None = None
) -> dict[str, Any]:
    """Write the merged checkpoint in the base's dtypes; returns a report.

    Args:
        base: folder of the unquantized base.
        adapter: folder of the adapter.
        output: the new folder; it appears when it is complete. A checkpoint that is there is replaced.
        rounding: of the base, to merge into the weights that the adapter was trained on.
        shard_size: largest size of a file, for example 5GB; None for files as the base has them.

    Raises:
        CheckpointError: the base is quantized or cannot be read, or the adapter does not fit it.
    """
    started, cpu = time.monotonic(), time.process_time()
    if output.resolve() in {folder.resolve() for folder in (base, adapter)}:
        raise CheckpointError(f"{output} is the base or the adapter; give another folder for the result")
    config, source, lora = base_config(base), open_base(base), LoraAdapter(adapter)
    plan = plan_merge(source, lora, config)
    check_tokenizer(base, adapter, plan.rows)
    limit = parse_size(shard_size) if shard_size else None
    shards = _Shards(plan_shards(plan.specs(), source.shards, limit), plan)
    with working_folder(output) as folder:
        keep_only(folder, set(shards.files))
        _check_space(folder, shards)
        state = MergeState(folder, _settings(base, adapter, rounding, shards))
        found, resumed = _write_shards(folder, shards, lora, rounding, state)
        write_companions(base, adapter, folder)
        write_config(config, folder, untied=plan.untied, vocabulary=plan.vocabulary)
        write_index(folder, plan.specs(), shards.files)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    report = {
        "version": 1,
        "base": base.name,
        "adapter": adapter.name,
        "rounding": rounding.name.lower(),
        "seconds": round(time.monotonic() - started, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "bytes": sum(shards.nbytes(file) for file in shards.files),
        "shards": len(shards.files),
        "resumed_shards": resumed,
        "tensors": len(plan.tensors),
        "changed": sum(tensor.changed for tensor in plan.tensors.values()),
        "layers": len(lora.layers()),
        "untied": plan.untied,
        "vocabulary": plan.vocabulary,
        "differences": differences(found, nf4=rounding is not Rounding.NONE),
    }
    _tell(report, output)
    tell_end_tokens(output)
    return report


def _write_shards(
    folder: Path, shards: _Shards, lora: LoraAdapter, rounding: Rounding, state: MergeState
) -> tuple[dict[str, Sums], int]:
    """Write what is not finished; returns all differences, and how many shards were finished before."""
    found: dict[str, Sums] = {}
    resumed = 0
    with byte_bar("Merging", sum(shards.nbytes(file) for file in shards.files)) as progress:
        writer = TensorWriter(lora, rounding.value, progress)
        for file in shards.files:
            tensors = shards.tensors(file)
            parts = state.finished(file, tensors)
            if parts is not None:
                resumed += 1
                progress(shards.nbytes(file))
            else:
                sources, parts = writer.write(folder / file, tensors)
                state.finish(file, sources, parts)
            found |= parts
    return found, resumed


def _check_space(folder: Path, shards: _Shards) -> None:
    missing = sum(shards.nbytes(file) for file in shards.files if not (folder / file).exists())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise CheckpointError(
            f"the merged checkpoint needs {missing / 1e9:.1f} GB more in {folder.parent}, which has {free / 1e9:.1f} "
            "GB free; free some, or give a folder on another disk"
        )


def _settings(base: Path, adapter: Path, rounding: Rounding, shards: _Shards) -> str:
    """A digest of all that decides the result, apart from the base's tensors."""
    digest = hashlib.sha256(json.dumps([1, rounding.name, shards.files], sort_keys=True).encode())
    for path in [base / "config.json", *adapter_files(adapter)]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _tell(report: dict[str, Any], output: Path) -> None:
    errors = ", ".join(f"{way} {error:.2e}" for way, error in report["differences"]["all"].items())
    say(f"Relative error against the live adapter ({report['differences']['live']}): {errors}")
    if report["untied"]:
        say("The embedding and the head were one tensor and are two now, because the adapter changes one of them")
    say(
        f"Merged {report['changed']} of {report['tensors']} tensors into {output} in {report['seconds']:.1f} s "
        f"(peak memory {report['peak_memory_bytes'] / 2**20:.0f} MiB)"
    )
