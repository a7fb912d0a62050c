"""The engines that are compared, each at its best settings on this machine.

Owns: their environments, settings, weights, and what is to be said about each. A new peer is one entry.
Knows nothing of what is asked.

    PEERS["paged"]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.questions import Dialect
from scripts.benchmark.weights import Form, WeightForms

MAX_NUM_SEQS = 32
_HAS_AVX512 = "avx512" in Path("/proc/cpuinfo").read_text("utf-8")
_VLLM_FORM = Form.QUANTIZED if _HAS_AVX512 else Form.UNQUANTIZED
_VLLM_NOTE = "" if _HAS_AVX512 else "unquantized: vLLM's CPU build runs AWQ with AVX512 only"


@dataclass(frozen=True)
class Peer:
    """One engine with its settings.

    Args:
        name: in options and results.
        environment: of `scripts/_environment.py`.
        module: has `create(settings)`; serving.engine is the front of our package.
        settings: further fields of `serving.config.Settings`.
        dialect: of the grammar that it gets.
        form: of the weights that it reads.
        is_fresh: start anew for every batch, because it learns from what it answered: a question of an
            earlier batch must not help.
        note: what a reader of the figures must know.
    """

    name: str
    environment: str
    module: str = "serving.engine"
    settings: Mapping[str, object] = field(default_factory=dict)
    dialect: Dialect = Dialect.LARK
    form: Form = Form.QUANTIZED
    is_fresh: bool = False
    note: str = ""

    def command(self, python: Path, forms: WeightForms, *, endless: bool) -> list[str]:
        """What starts its process."""
        settings = {
            "max_num_seqs": MAX_NUM_SEQS,
            "num_threads": num_cores(),
            **self.settings,
            "weights_dir": str(forms.path(self.form, endless=endless)),
        }
        return [str(python), "-m", "scripts.benchmark.worker", self.module, json.dumps(settings)]

    def env(self, python: Path) -> dict[str, str]:
        """All cores, and programs of its own environment first."""
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(num_cores())}


def _vllm(name: str, module: str = "serving.engine", *, is_fresh: bool = False, **settings: object) -> Peer:
    settings = {"engine": "vllm", "max_model_len": 2048, **settings}
    return Peer(name, "vllm", module, settings, form=_VLLM_FORM, is_fresh=is_fresh, note=_VLLM_NOTE)


def _llama(name: str, **settings: object) -> Peer:
    return Peer(name, "llama", "scripts.benchmark.llama_engine", settings, Dialect.GBNF, Form.GGUF)


_ALL = (
    Peer("paged", "dev", settings={"engine": "paged", "speculation": "auto"}, is_fresh=True),
    Peer("paged-plain", "dev", settings={"engine": "paged", "speculation": "off"}, is_fresh=True),
    _vllm("vllm"),
    _vllm("vllm-float32", dtype="float32"),
    _vllm("vllm-ngram", speculation="ngram"),
    _vllm("vllm-suffix", speculation="suffix", is_fresh=True),
    _vllm("vllm-compiled", "scripts.benchmark.vllm_compiled"),
    _vllm("vllm-both", "scripts.benchmark.vllm_compiled", speculation="suffix", is_fresh=True),
    _llama("llama"),
    _llama("llama-ngram", speculation="ngram"),
    Peer(
        "transformers",
        "dev",
        "tests.engines.transformers_engine",  # kept where its conformance is tested
        settings={"max_num_seqs": 1},  # it cannot batch, and threads side by side are slower
        dialect=Dialect.NONE,
        form=Form.UNQUANTIZED,
        note="float32, no grammar, one request at a time",
    ),
    Peer("fake", "dev", settings={"engine": "fake"}, note="no model: for tests of the harness"),
)
PEERS = {peer.name: peer for peer in _ALL}
DEFAULT = ("paged", "paged-plain", "vllm", "vllm-ngram", "vllm-suffix", "llama", "transformers")
OURS = "paged"


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def python_of(peer: Peer) -> Path:
    """The Python of its environment, installed if need be; exits when that fails."""
    if peer.environment == "dev":
        return Path(sys.executable)
    from scripts._environment import prepare

    return prepare(peer.environment) / "bin" / "python"
