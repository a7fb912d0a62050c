"""The same model in the forms that engines read.

Owns: where each form lies and what makes it. Knows nothing of engines.

    forms = WeightForms(Path("weights/honeycomb-nlq"), unquantized=None, cache=Path("build/bench"))
    forms.path(Form.GGUF, endless=False)
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = "model.safetensors"


class Form(StrEnum):
    """How the weights are stored."""

    QUANTIZED = "AWQ int4"
    UNQUANTIZED = "unquantized"
    GGUF = "GGUF Q4_1"


class WeightForms:
    """Made when asked for, kept for the next run.

    Args:
        weights: the quantized checkpoint that is served.
        unquantized: the same model before quantization; None lets scripts/build_weights make it, which
            is right for the default weights only.
        cache: for what is made, a folder for each checkpoint.
    """

    def __init__(self, weights: Path, *, unquantized: Path | None, cache: Path) -> None:
        self._weights = weights
        self._unquantized = unquantized
        self.name = weights.name
        self.digest = digest(weights)
        self._cache = cache / self.digest[:12]

    def path(self, form: Form, *, endless: bool = False) -> Path:
        """The folder of a form; `endless` names an end token that no answer has."""
        folder = {
            Form.QUANTIZED: lambda: self._weights,
            Form.UNQUANTIZED: self._plain,
            Form.GGUF: self._gguf,
        }[form]()
        return endless_view(folder, self._cache / f"{form.name.lower()}-endless") if endless else folder

    def _plain(self) -> Path:
        if self._unquantized is not None:
            return self._unquantized
        folder = self._cache / "unquantized"
        if not (folder / "generation_config.json").exists():  # written last
            command = [str(ROOT / "scripts/build_weights"), "--unquantized", str(folder)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        return folder

    def _gguf(self) -> Path:
        folder = self._cache / "gguf"
        if not (folder / "gguf.json").exists():  # written last
            from scripts.benchmark.gguf_export import export  # gguf: only the first run needs it
            from scripts.checkpoint.download import fetch_base
            from scripts.checkpoint.recipe import RECIPE

            export(self._plain(), fetch_base(RECIPE, ROOT / "weights/.cache"), folder)
        return folder


def digest(weights: Path) -> str:
    """Names the checkpoint in results: sha256 of its tensors' file."""
    file = weights / CHECKPOINT
    if not file.exists():  # the fake engine has none
        return hashlib.sha256(str(weights).encode()).hexdigest()
    with file.open("rb") as tensors:
        return hashlib.file_digest(tensors, "sha256").hexdigest()


def endless_view(folder: Path, view: Path) -> Path:
    """The same checkpoint, its end token replaced by a special one that no text has.

    So every engine goes on to the limit, without an option that our engines do not have.
    """
    view.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    end = max(token["id"] for token in tokenizer["added_tokens"] if token["special"])
    for file in folder.iterdir():
        link = view / file.name
        link.unlink(missing_ok=True)
        if file.name in ("config.json", "generation_config.json"):
            content = json.loads(file.read_text("utf-8"))
            link.write_text(json.dumps({**content, "eos_token_id": end}, indent=2), "utf-8")
        elif file.name != "tokenizer_config.json":  # it names the end token too, and nobody needs it
            link.symlink_to(file.resolve())
    return view
