"""Make the same model in the formats that different engines read, and cache them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from pipeline.paths import ROOT
from pipeline.weights.default_weights import default_weights

CHECKPOINT = "model.safetensors"


class Form(StrEnum):
    """A format of the weights."""

    QUANTIZED = "AWQ int4"
    UNQUANTIZED = "unquantized"
    GGUF = "GGUF Q4_1"


class NoSuchFormError(Exception):
    """A format of the weights is missing and cannot be made."""


class WeightForms:
    """The weights in all formats, made when they are needed and kept for the next run.

    Args:
        weights: the quantized checkpoint that is served.
        unquantized: the same model before quantization; None makes it with scripts/build_weights, if `weights`
            are the default ones.
        cache: folder for the results, with a subfolder for each checkpoint.
    """

    def __init__(self, weights: Path, *, unquantized: Path | None, cache: Path) -> None:
        self._weights = weights
        self._unquantized = unquantized
        self.name = weights.name
        self.digest = digest(weights)
        self._cache = cache / self.digest[:12]

    def path(self, form: Form, *, endless: bool = False) -> Path:
        """The folder of a format; with `endless`, its end token is one that no answer has.

        Raises:
            NoSuchFormError: it cannot be made from these weights.
        """
        folder = {
            Form.QUANTIZED: lambda: self._weights,
            Form.UNQUANTIZED: lambda: self._with_drafts(self._unquantized_folder()),
            Form.GGUF: self._gguf,
        }[form]()
        return endless_view(folder, self._cache / f"{form.name.lower()}-endless") if endless else folder

    def label(self, form: Form) -> str:
        """What a result says of the weights: the weights that are served may be unquantized as well."""
        config = self._weights / "config.json"
        is_plain = config.exists() and "quantization_config" not in json.loads(config.read_text("utf-8"))
        return str(Form.UNQUANTIZED if form is Form.QUANTIZED and is_plain else form)

    def _unquantized_folder(self) -> Path:
        if self._unquantized is not None:
            return self._unquantized
        self._need_default("before quantization", "give their folder with --unquantized")
        folder = self._cache / "unquantized"
        if not (folder / "generation_config.json").exists():  # written last
            command = [str(ROOT / "scripts/build_weights"), "--unquantized", str(folder)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        return folder

    def _with_drafts(self, folder: Path) -> Path:
        """A view of a checkpoint with the served weights' draft model and n-gram table, which drafts may come from."""
        drafts = [file for file in self._weights.glob("draft.*") if not (folder / file.name).exists()]
        if not drafts:
            return folder
        view = self._cache / "unquantized-drafts"
        shutil.rmtree(view, ignore_errors=True)  # it may be of another folder
        view.mkdir(parents=True)
        for file in (*folder.iterdir(), *drafts):
            (view / file.name).symlink_to(file.resolve())
        return view

    def _gguf(self) -> Path:
        self._need_default("as GGUF", "leave llama out")
        folder = self._cache / "gguf"
        if not (folder / "gguf.json").exists():  # written last
            from lab.bench.gguf_export import export  # imports gguf, which only the first run needs
            from pipeline.weights.download import fetch_base
            from pipeline.weights.recipes import find_recipe

            export(self._unquantized_folder(), fetch_base(find_recipe(ROOT).base, ROOT / "weights/.cache"), folder)
        return folder

    def _need_default(self, form: str, remedy: str) -> None:
        if self._weights.resolve() != default_weights().resolve():
            raise NoSuchFormError(f"only the default weights can be made {form}; {remedy}")


def digest(weights: Path) -> str:
    """SHA-256 of the checkpoint's tensor file, which identifies it in results."""
    file = weights / CHECKPOINT
    if not file.exists():  # the fake engine needs no tensors
        return hashlib.sha256(str(weights).encode()).hexdigest()
    with file.open("rb") as tensors:
        return hashlib.file_digest(tensors, "sha256").hexdigest()


def endless_view(folder: Path, view: Path) -> Path:
    """A view of a checkpoint whose end token is a special token that no text has.

    Every engine then generates up to the limit, without an option for it.
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
        elif file.name != "tokenizer_config.json":  # it also names the end token, and is not needed
            link.symlink_to(file.resolve())
    return view
