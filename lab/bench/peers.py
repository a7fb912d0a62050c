"""The engines to compare, each with its best settings on this machine; a new one is one entry."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.bench.machine import num_cores
from lab.bench.peer_weights import Form, WeightForms
from lab.bench.protocol import Dialect, Program
from pipeline.environment.enter import prepare

MAX_NUM_SEQS = 32


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
        name: in options and results.
        environment: of `pipeline.environment`.
        program: the program of its process.
        settings: more fields of `serving.config.Settings`.
        dialect: of its grammars.
        form: the format of its weights.
        is_fresh: whether to restart it for every batch, because it learns from its answers, and a question of an
            earlier batch should not help.
        note: a remark for readers of the figures.
    """

    name: str
    environment: str
    program: Program = Program.SERVING
    settings: Mapping[str, object] = field(default_factory=dict)
    dialect: Dialect = Dialect.LARK
    form: Form = Form.QUANTIZED
    is_fresh: bool = False
    note: str = ""

    def command(self, python: Path, forms: WeightForms, *, endless: bool) -> list[str]:
        """The command that starts its process."""
        settings = {
            "max_num_seqs": MAX_NUM_SEQS,
            **self.settings,
            "weights_dir": str(forms.path(self.form, endless=endless)),
        }
        return [str(python), "-m", "lab.bench.worker", self.program, json.dumps(settings)]

    def env(self, python: Path) -> dict[str, str]:
        """Environment variables: all cores, and the programs of its environment first."""
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(num_cores())}


def _paged(name: str, speculation: str) -> Peer:
    return Peer(name, "dev", settings={"engine": "paged", "speculation": speculation, **_cores()}, is_fresh=True)


def _vllm(name: str, **settings: object) -> Peer:
    speculation = settings.setdefault("speculation", "off")
    return Peer(
        name,
        "vllm-suffix" if speculation == "suffix" else "vllm",  # it needs its own package
        settings={"engine": "vllm", "max_model_len": 2048, **_cores(), **_VLLM_BEST, **settings},
        form=_VLLM_FORM,
        is_fresh=speculation in ("suffix", "auto"),  # they learn from answers
        note=_VLLM_NOTE,
    )


def _llama(name: str, **settings: object) -> Peer:
    return Peer(name, "llama", Program.LLAMA, {**_cores(), **settings}, Dialect.GBNF, Form.GGUF)


def _cores() -> dict[str, int]:
    return {"num_threads": num_cores()}


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
    _llama("llama-ngram", speculation="ngram"),
    Peer(
        "transformers",
        "dev",
        Program.TRANSFORMERS,
        settings={"max_num_seqs": 1},  # it cannot batch, and concurrent requests would be slower
        dialect=Dialect.NONE,
        form=Form.UNQUANTIZED,
        note="float32, no grammar, one request at a time",
    ),
    Peer("fake", "dev", settings={"engine": "fake"}, note="no model: for tests of the harness"),
)
PEERS = {peer.name: peer for peer in _ALL}
DEFAULT = ("paged", "paged-plain", "vllm", "vllm-ngram", "vllm-suffix", "llama", "transformers")
OURS = "paged"


def for_task(peer: Peer, *, has_gbnf: bool) -> Peer:
    """The peer for a task: without grammars if the task has none in the peer's dialect."""
    if peer.dialect is not Dialect.GBNF or has_gbnf:
        return peer
    note = f"{peer.note}; " if peer.note else ""
    return replace(peer, dialect=Dialect.NONE, note=f"{note}no grammar: this task has none in GBNF")


def python_of(peer: Peer) -> Path:
    """The Python of its environment, which is installed if necessary.

    Raises:
        EnvironmentFailedError: it cannot be installed; the reason is on stderr.
    """
    if peer.environment == "dev":
        return Path(sys.executable)
    try:
        return prepare(peer.environment) / "bin" / "python"
    except SystemExit as error:  # the exit of a script
        raise EnvironmentFailedError(f"the environment {peer.environment} cannot be made: {error}") from error
