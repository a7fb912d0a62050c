"""A small locked checkpoint, as scripts/prepare leaves one: weights/NAME, NAME.lock and NAME.prepare.json beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from serving.weights import LockedSource, LockedWeights, WeightsLock, lock_files, set_digest
from tests.pipeline.package.checkpoints import HONEYCOMB, make_checkpoint

QUANTIZATION = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def locked_weights(root: Path, *, name: str = "tiny", size: int = 2_000_000) -> Path:
    """The folder of the weights; `size` bytes of tensors."""
    folder = make_checkpoint(root / "weights" / name, task_file=HONEYCOMB, quantization_config=QUANTIZATION)
    (folder / "README.md").unlink()
    numbers = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    save_file({"w": numbers}, folder / "model.safetensors")
    lock(folder)
    return folder


def lock(folder: Path) -> None:
    """Lock all files of the folder."""
    files = lock_files(folder)
    digest = set_digest(files)
    entry = LockedWeights(
        name=folder.name,
        target=f"/src/weights/{folder.name}",
        sources=(LockedSource(uri=f"file://./weights/{folder.name}", fingerprint=digest),),
        imported_at="2026-01-01T00:00:00Z",
        set_digest=digest,
        size=sum(file.size for file in files),
        files=files,
    )
    text = WeightsLock(version=1, envelope_format="", weights=(entry,)).text()
    folder.with_name(f"{folder.name}.lock").write_text(text)


def record(folder: Path, **changes: Any) -> Path:
    """A report of the steps of scripts/prepare, in its format."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
    }
    merged = {"rounding": "nf4", "changed": 9, "tensors": 20, "differences": {"live": "bf16", "all": {"nf4": 0.0012}}}
    comparison = {
        "command": "scripts/compare /home/someone/before /home/someone/after",
        "weights": {"mean": 0.0123456, "layers": {f"layer {i}": 0.5 for i in range(99)}},
        "scores": {"measures": {"exact": {"before": 89.4, "after": 88.8}}},
        "failures": ["/home/someone/prompts.jsonl is short, see ~/notes/x.txt"],
    }
    report = {
        "version": 1,
        "name": folder.name,
        "made": "2026-11-23T00:00:00Z",
        "machine": {"processor": "Some CPU", "cores": 2},
        "task": "honeycomb",
        "base": {"source": f"hf://maker/base-7b@{'a' * 40}", "files": {}},
        "adapter": {"source": "/home/someone/secret-project/my-adapter", "files": {}},
        "options": {"calibration": "/home/someone/prompts.jsonl"},
        "steps": [
            {"name": "merge", "wall_seconds": 12.5, "peak_memory_bytes": 2**30, "report": merged},
            {"name": "quantize", "wall_seconds": 99.0, "peak_memory_bytes": 2**31, "report": {"made_with": "AutoAWQ"}},
        ],
        "comparison": comparison,
        "files": files,
        "size": 1,
    }
    path = folder.with_name(f"{folder.name}.prepare.json")
    path.write_text(json.dumps(report | changes))
    return path
