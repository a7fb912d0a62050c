"""The engines to compare, each with its best settings on this machine, and the weights in their formats."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lab.bench.llama_build import VERSION, export
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT
from pipeline.weights.default_weights import default_weights
from pipeline.weights.digest import sha256
from serving.devices import available_cores

CHECKPOINT = "model.safetensors"
MAX_NUM_SEQS = 32
LLAMA = "llama"  # an engine of the benchmark, not of `serving`


class Form(StrEnum):
    """A format of the weights."""

    QUANTIZED = "AWQ int4"
    UNQUANTIZED = "unquantized"
    GGUF = "GGUF Q4_0"
    GGUF_K = "GGUF Q4_K_M"


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

    def path(self, form: Form) -> Path:
        """The folder of a format.

        Raises:
            NoSuchFormError: it cannot be made from these weights.
        """
        match form:
            case Form.QUANTIZED:
                return self._weights
            case Form.UNQUANTIZED:
                return self._with_drafts(self._unquantized_folder())
            case Form.GGUF | Form.GGUF_K:
                return self._gguf(form.removeprefix("GGUF "))

    def label(self, form: Form) -> str:
        """What a result says of the weights: the weights that are served may be unquantized as well."""
        config = self._weights / "config.json"
        is_plain = config.exists() and "quantization_config" not in json.loads(config.read_text("utf-8"))
        return str(Form.UNQUANTIZED if form is Form.QUANTIZED and is_plain else form)

    def _unquantized_folder(self) -> Path:
        if self._unquantized is not None:
            return self._unquantized
        if self._weights.resolve() != default_weights().resolve():
            raise NoSuchFormError("only the default weights are made unquantized; give the folder with --unquantized")
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

    def _gguf(self, kind: str) -> Path:
        unquantized = self._unquantized_folder()
        folder = self._cache / f"{kind}-{VERSION}-{digest(unquantized)[:12]}"
        if not (folder / "config.json").exists():  # written last
            export(unquantized, folder, kind)
        return folder


def digest(weights: Path) -> str:
    """SHA-256 of the checkpoint's tensor file, which identifies it in results."""
    file = weights / CHECKPOINT
    if not file.exists():  # the fake engine needs no tensors
        return hashlib.sha256(str(weights).encode()).hexdigest()
    return sha256(file)


class EnvironmentFailedError(Exception):
    """The environment of a peer could not be installed."""


_HAS_AVX512 = "avx512" in Path("/proc/cpuinfo").read_text("utf-8")
_VLLM_FORM = Form.QUANTIZED if _HAS_AVX512 else Form.UNQUANTIZED
# Without AVX512 there is no bfloat16 arithmetic either, and float32 is far faster.
_VLLM_BEST: Mapping[str, object] = {} if _HAS_AVX512 else {"dtype": "float32"}
_VLLM_NOTE = "" if _HAS_AVX512 else "unquantized, float32: vLLM's CPU build runs AWQ with AVX512 only"


@dataclass(frozen=True)
class Peer:
    """One engine with its settings.

    Args:
        name: its name in options and results.
        environment: the name of its environment in `pipeline.environment`.
        settings: more fields of `serving.config.Settings`.
        form: the format of its weights.
        is_fresh: whether to restart it for every batch, because it learns from its answers, and a question of an
            earlier batch should not help.
        note: a remark for readers of the figures.
    """

    name: str
    environment: str
    settings: Mapping[str, object] = field(default_factory=dict)
    form: Form = Form.QUANTIZED
    is_fresh: bool = False
    note: str = ""

    @property
    def engine(self) -> str:
        """The name of its engine."""
        return str(self.settings["engine"])

    def command(self, python: Path, weights: Path, **more: object) -> list[str]:
        """The command that starts its process, with these weights and more settings."""
        settings = {"max_num_seqs": MAX_NUM_SEQS, **self.settings, "weights_dir": str(weights), **more}
        return [str(python), "-m", "lab.bench.worker", json.dumps(settings)]

    def env(self, python: Path) -> dict[str, str]:
        """Environment variables: all cores, and the programs of its environment first."""
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(available_cores())}


_CORES: Mapping[str, object] = {"num_threads": available_cores()}


def _paged(name: str, speculation: str) -> Peer:
    return Peer(name, "dev", settings={"engine": "paged", "speculation": speculation, **_CORES}, is_fresh=True)


def _vllm(name: str, **settings: object) -> Peer:
    speculation = settings.setdefault("speculation", "off")
    return Peer(
        name,
        "vllm-suffix" if speculation == "suffix" else "vllm",  # it needs its own package
        settings={"engine": "vllm", "max_model_len": 2048, **_CORES, **_VLLM_BEST, **settings},
        form=_VLLM_FORM,
        is_fresh=speculation in ("suffix", "auto"),  # they learn from answers
        note=_VLLM_NOTE,
    )


def _llama(name: str, form: Form = Form.GGUF, **settings: object) -> Peer:
    return Peer(name, "dev", settings={"engine": LLAMA, **_CORES, **settings}, form=form)


_ALL = (
    _paged("paged", "auto"),
    _paged("paged-plain", "off"),
    _vllm("vllm"),
    _vllm("vllm-float32", dtype="float32"),
    _vllm("vllm-ngram", speculation="ngram"),
    _vllm("vllm-suffix", speculation="suffix"),
    _vllm("vllm-drafts", speculation="auto"),
    _vllm("vllm-compiled", compile="on"),
    _vllm("vllm-both", compile="on", speculation="suffix"),
    _vllm("vllm-compiled-drafts", compile="on", speculation="auto"),
    _llama("llama"),
    _llama("llama-k", Form.GGUF_K),
    _llama("llama-ngram", speculation="ngram"),
    Peer("fake", "dev", settings={"engine": "fake"}, note="no model: for tests of the harness"),
)
PEERS = {peer.name: peer for peer in _ALL}
DEFAULT = ("paged", "paged-plain", "vllm", "vllm-ngram", "vllm-suffix", "llama")
OURS = "paged"


def python_of(peer: Peer) -> Path:
    """The Python of its environment, which is installed if necessary.

    Raises:
        EnvironmentFailedError: it cannot be installed; the reason is on stderr.
    """
    if peer.environment == "dev":
        return Path(sys.executable)
    try:
        return installed_environment(peer.environment) / "bin" / "python"
    except SystemExit as error:  # the exit of a script
        raise EnvironmentFailedError(f"the environment {peer.environment} cannot be made: {error}") from error
