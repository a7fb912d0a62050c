"""Merges a PEFT LoRA adapter into a checkpoint, shard by shard; an interrupted merge continues."""

from __future__ import annotations

import fcntl
import hashlib
import json
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import replace_folder, write_json
from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.console import byte_bar, say
from pipeline.weights.end_tokens import tell_end_tokens
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.companions import check_tokenizer, write_companions, write_config
from pipeline.weights.merging.lora_adapter import PeftAdapter
from pipeline.weights.merging.merge_plan import (
    PlannedTensor,
    parse_size,
    plan_merge,
    plan_shards,
    write_index,
)
from pipeline.weights.merging.row_merge import Sums, differences, read_blocks, write_shard
from pipeline.weights.merging.sources import adapter_files, open_base

_STATE, _LOCK = "merge-state.json", "merge.lock"


class Rounding(Enum):
    """How the base was rounded while the adapter was trained."""

    NONE = None
    NF4 = True  # with double quantization
    NF4_SINGLE = False  # bnb_4bit_use_double_quant=False


_Shards = dict[str, dict[str, PlannedTensor]]  # the tensors of each file by name


def merge_folder(
    base: Path, adapter: Path, output: Path, rounding: Rounding = Rounding.NONE, shard_size: str | None = None
) -> dict[str, Any]:
    """Write the merged checkpoint in the base's dtypes; returns a report.

    Args:
        base: the folder of the unquantized base.
        output: the new folder; it appears when it is complete. A checkpoint that is there is replaced.
        rounding: how to round the base, to merge into the weights that the adapter was trained on.
        shard_size: the largest size of a file, for example 5GB; None for files as the base has them.

    Raises:
        CheckpointError: the base is quantized or cannot be read, or the adapter does not fit it.
    """
    started, cpu = time.monotonic(), time.process_time()
    if output.resolve() in {folder.resolve() for folder in (base, adapter)}:
        raise CheckpointError(f"{output} is the base or the adapter; give another folder for the result")
    config, source, lora = unquantized_config(base), open_base(base), PeftAdapter(adapter)
    plan = plan_merge(source, lora, config)
    check_tokenizer(base, adapter, plan.rows)
    limit = parse_size(shard_size) if shard_size else None
    files = plan_shards(plan.specs(), source.shards, limit)
    shards = {file: {name: plan.tensors[name] for name in names} for file, names in files.items()}
    with working_folder(output) as folder:
        keep_only(folder, set(files))
        _check_space(folder, shards)
        state = MergeState(folder, _settings(base, adapter, rounding, shards))
        found, resumed = _write_shards(folder, shards, lora, rounding, state)
        write_companions(base, adapter, folder)
        write_config(config, folder, untied=plan.untied, vocabulary=plan.vocabulary)
        write_index(folder, plan.specs(), files)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    report = {
        "version": 1,
        "base": base.name,
        "adapter": adapter.name,
        "rounding": rounding.name.lower(),
        "seconds": round(time.monotonic() - started, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "bytes": sum(map(_nbytes, shards.values())),
        "shards": len(files),
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
    folder: Path, shards: _Shards, lora: PeftAdapter, rounding: Rounding, state: MergeState
) -> tuple[dict[str, Sums], int]:
    """Write what is not finished; returns all differences, and how many shards were finished before."""
    found: dict[str, Sums] = {}
    resumed = 0
    with byte_bar("Merging", sum(map(_nbytes, shards.values()))) as progress:
        for file, tensors in shards.items():
            parts = state.finished(file, tensors)
            if parts is not None:
                resumed += 1
                progress(_nbytes(tensors))
            else:
                sources, parts = write_shard(folder / file, tensors, lora, rounding.value, progress)
                state.finish(file, sources, parts)
            found |= parts
    return found, resumed


def _nbytes(tensors: dict[str, PlannedTensor]) -> int:
    return sum(tensor.spec.nbytes for tensor in tensors.values())


def _check_space(folder: Path, shards: _Shards) -> None:
    missing = sum(_nbytes(tensors) for file, tensors in shards.items() if not (folder / file).exists())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise CheckpointError(
            f"the merged checkpoint needs {missing / 1e9:.1f} GB more in {folder.parent}, which has {free / 1e9:.1f} "
            "GB free; free some, or give a folder on another disk"
        )


def _settings(base: Path, adapter: Path, rounding: Rounding, shards: _Shards) -> str:
    """A digest of all that decides the result, apart from the base's tensors."""
    digest = hashlib.sha256(
        json.dumps([1, rounding.name, {file: list(names) for file, names in shards.items()}], sort_keys=True).encode()
    )
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


class MergeState:
    """The finished shards of a merge, with digests of all that they were made from.

    Args:
        settings: a digest of all that decides the result, apart from the base's tensors.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self._path = folder / _STATE
        self._settings = settings
        self._shards: dict[str, dict[str, Any]] = self._read()

    def finished(self, file: str, tensors: dict[str, PlannedTensor]) -> dict[str, Sums] | None:
        """The differences of a finished shard; None if it has to be written, for instance as its sources changed."""
        entry, path = self._shards.get(file), self._path.with_name(file)
        if entry is None or not path.exists() or path.stat().st_size != entry["bytes"]:
            return None
        if source_digest(tensors) != entry["sources"]:
            return None
        return {name: Sums(**sums) for name, sums in entry["differences"].items()}

    def finish(self, file: str, sources: str, differences: dict[str, Sums]) -> None:
        """Record a finished shard."""
        size = self._path.with_name(file).stat().st_size
        parts = {name: asdict(sums) for name, sums in differences.items()}
        self._shards[file] = {"bytes": size, "sources": sources, "differences": parts}
        write_json(self._path, {"version": 1, "settings": self._settings, "shards": self._shards})

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            state = json.loads(self._path.read_text("utf-8"))
            return dict(state["shards"]) if state["settings"] == self._settings else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # none, or not of this version: begin again


@contextmanager
def working_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that becomes it at the end; after an error it stays, to continue there.

    Raises:
        CheckpointError: `output` is something else than a checkpoint, or another merge is writing it.
    """
    if output.exists() and not (output.is_dir() and (not any(output.iterdir()) or (output / "config.json").exists())):
        raise CheckpointError(f"{output} exists and is not a checkpoint; give a new folder")
    working = output.with_name(f".{output.name}.partial")
    working.mkdir(parents=True, exist_ok=True)
    with (working / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"another merge is writing {output}; wait for it, or give another folder") from error
        yield working
        (working / _STATE).unlink(missing_ok=True)
        (working / _LOCK).unlink()
        replace_folder(working, output)


def keep_only(folder: Path, shards: set[str]) -> None:
    """Remove all but the shards and the state from a working folder: the rest is of an earlier merge."""
    for path in folder.iterdir():
        if path.name not in {*shards, _STATE, _LOCK}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def source_digest(tensors: dict[str, PlannedTensor]) -> str:
    """A digest of all that a shard is made from, as `write_shard` gives it."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        for data, _ in read_blocks(tensors[name]):
            digest.update(data)
    return digest.hexdigest()
