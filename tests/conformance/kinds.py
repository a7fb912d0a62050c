"""The engines that the suite tests, and what each needs to start.

CONFORMANCE_ENGINES names them, separated by commas; CONFORMANCE_WEIGHTS is the folder for those that
take the small model (vLLM's CPU build needs an unquantized one on some machines). To test
another engine with the suite, add a function and a line in `KINDS`.

    CONFORMANCE_ENGINES=vllm CONFORMANCE_WEIGHTS=weights/smollm2-135m-instruct pytest tests/conformance
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipeline.paths import ROOT
from serving.config import Settings
from serving.devices import has_cuda_device
from serving.engine import Engine, create_engine
from serving.engines.fake.engine import UNSUPPORTED, FakeEngine
from serving.text import Tokenizer
from tests import small_model, tiny_tokenizers

WEIGHTS = ROOT / os.environ.get("CONFORMANCE_WEIGHTS", small_model.WEIGHTS)
DEFAULT_KINDS = "fake,transformers,paged,paged-small"
MAX_NUM_SEQS = 8
MAX_QUEUE = 24
MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Kind:
    """An engine with weights.

    Args:
        tokenizer: of the weights.
        start: a new engine with the limits above.
        same_share: share of greedy answers that must be the same alone and in a batch; 1 where arithmetic
            does not depend on the batch.
        model_dir: weights that transformers can load in fp32 to give the same text; None where
            there is no model.
        agreement: share of greedy queries that must equal the paged engine's on the same weights,
            measured as docs/engines.md says; None for the paged engine itself.
        refuses: sampling parameters that it does not have.
        constrained_logprobs: whether it gives log probabilities under a constraint too.
        counts_drafts: whether the metrics of an answer count its accepted drafts.
        is_reference: whether other engines are compared with it.
        adapter: one that it has; None if it has none.
    """

    tokenizer: Tokenizer
    start: Callable[[], Engine]
    same_share: float = 1.0
    model_dir: Path | None = None
    agreement: float | None = None
    refuses: frozenset[str] = frozenset()
    constrained_logprobs: bool = True
    counts_drafts: bool = True
    is_reference: bool = False
    adapter: str | None = None


def limits(engine: str, weights_dir: Path) -> Settings:
    """An engine small enough to fill."""
    return Settings(
        engine=engine,
        weights_dir=weights_dir,
        max_num_seqs=MAX_NUM_SEQS,
        max_queue=MAX_QUEUE,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=64,  # longer prompts are computed in chunks
        num_threads=1,  # more threads make tiny matrices no faster, and slow on a busy machine
        device="cpu" if engine == "paged" else "auto",
    )


def _fake(folder: Path) -> Kind:
    tokenizer = tiny_tokenizers.byte_level()

    def start() -> FakeEngine:
        return FakeEngine(
            tokenizer,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_queue=MAX_QUEUE,
            step_seconds=0.001,
            adapters=("known",),
        )

    return Kind(tokenizer, start, refuses=frozenset(UNSUPPORTED), adapter="known")


def tiny_checkpoint(folder: Path) -> Tokenizer:
    """A random two-layer Llama with a byte-level vocabulary; many tokens end it."""
    from tests.serving.models import tiny_checkpoints

    tokenizer = tiny_tokenizers.byte_level(num_end_tokens=24)
    model = tiny_checkpoints.tiny_llama(vocab_size=tokenizer.vocab_size, max_position_embeddings=MAX_MODEL_LEN)
    tiny_checkpoints.save(model, folder)
    tiny_tokenizers.save(tokenizer, folder)
    return tokenizer


def _transformers(folder: Path) -> Kind:
    from tests.conformance import transformers_engine

    tokenizer = tiny_checkpoint(folder)
    settings = limits("transformers", folder)
    return Kind(tokenizer, lambda: transformers_engine.create(settings), model_dir=folder, is_reference=True)


def _paged(folder: Path) -> Kind:
    tokenizer = tiny_checkpoint(folder)
    # Some CPUs would multiply in bfloat16, which transformers' float32 does not agree with.
    settings = limits("paged", folder).model_copy(update={"adapters": tiny_adapter(folder), "dtype": "float32"})
    return Kind(tokenizer, lambda: create_engine(settings), model_dir=folder, adapter="known")


def tiny_adapter(folder: Path) -> Path:
    """A list with a random adapter of the checkpoint in the folder, called "known"."""
    from serving.kernels.reference import ReferenceKernels
    from serving.models.loader import load_with_kernels
    from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry

    model = load_with_kernels(folder, ReferenceKernels())
    adapter = write_adapter(folder / "adapter", model.weights.decoder, seed=3)
    return write_registry(folder / "adapters.yaml", {"known": adapter})


def _paged_small(folder: Path) -> Kind:
    return _real_model("paged")


def _vllm(folder: Path) -> Kind:
    assert importlib.util.find_spec("vllm"), "this environment has no vLLM; scripts/test --vllm makes one"
    # bfloat16 sums depend on the batch. In docs/results/agreement-bfloat16.json 59 of 62 queries equal the paged
    # engine's; 0.85 is four standard errors below. In float32 test_vllm_process compares all queries exactly.
    agreement = 0.85 if vllm_dtype() == "auto" else None
    kind = _real_model("vllm", vllm_dtype())
    refuses = frozenset({"min_p"})  # vLLM does not have it with drafts, which are on by default
    return replace(
        kind, same_share=0.9, agreement=agreement, refuses=refuses, constrained_logprobs=False, counts_drafts=False
    )


def _vllm_adapters(folder: Path) -> Kind:
    """Adapters make vLLM slower, so the other tests have an engine without."""
    from tests.serving.engines.paged.adapter_folders import write_registry

    folders = {"known": ROOT / "examples" / "honeycomb" / "small"}
    adapters = write_registry(folder / "adapters.yaml", folders, max_rank="32")
    kind = _real_model("vllm", vllm_dtype(), adapters=adapters)
    return replace(kind, same_share=0.9, constrained_logprobs=False, counts_drafts=False, adapter="known")


def _http(folder: Path) -> Kind:
    """The small model on vLLM's own server, at the address CONFORMANCE_SERVER, or started here."""
    from tests.serving.engines.vllm.vllm_server import served

    url = served(limits("vllm", WEIGHTS).model_copy(update={"dtype": vllm_dtype()}), folder)
    settings = Settings(
        engine="http",
        engine_url=url,
        weights_dir=WEIGHTS,
        max_num_seqs=MAX_NUM_SEQS,
        max_queue=MAX_QUEUE,
        max_model_len=MAX_MODEL_LEN,
    )
    tokenizer = Tokenizer.from_dir(WEIGHTS)
    return Kind(
        tokenizer, lambda: create_engine(settings), same_share=0.9, constrained_logprobs=False, counts_drafts=False
    )


def vllm_dtype() -> str:
    """The setting DTYPE for vLLM: float32 for unquantized weights on a CPU that has to emulate bfloat16, slowly."""
    is_quantized = "quantization_config" in json.loads((WEIGHTS / "config.json").read_text())
    has_bfloat16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text() or has_cuda_device()
    return "auto" if is_quantized or has_bfloat16 else "float32"


def _real_model(engine: str, dtype: str = "auto", **settings: object) -> Kind:
    assert (WEIGHTS / "model.safetensors").is_file(), f"{WEIGHTS} is not built; {small_model.BUILD} does it"

    def start() -> Engine:
        return create_engine(limits(engine, WEIGHTS).model_copy(update={"dtype": dtype, **settings}))

    return Kind(Tokenizer.from_dir(WEIGHTS), start)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "fake": _fake,
    "transformers": _transformers,
    "paged": _paged,
    "paged-small": _paged_small,
    "vllm": _vllm,
    "vllm-adapters": _vllm_adapters,
    "http": _http,
}
_MARKS = {
    "paged-small": pytest.mark.weights,
    "vllm": pytest.mark.vllm,
    "vllm-adapters": pytest.mark.vllm,
    "http": pytest.mark.vllm,
}

_OF_HTTP = "test_engine_aborts.py", "test_engine_answers.py", "test_engine_refusals.py"
ONLY = {"vllm-adapters": ("test_engine_adapters.py",), "http": _OF_HTTP}
"""Kinds that take the tests of some files only: of what is their own. CONFORMANCE_ALL=1 runs all."""

NOT_SLOW = {
    # The peer of the benchmark, and the reference: answers, ends, and its own sampling
    "transformers": ("test_engine_end.py", "test_engine_oracle.py", *_OF_HTTP),
    # What depends on a real vocabulary and on 4-bit weights
    "paged-small": (
        *("test_engine_answers.py", "test_engine_constraints.py", "test_engine_grammar.py", "test_engine_load.py"),
        "test_engine_tools.py",
    ),
}
"""Files whose tests these kinds take by default; with the others they are slow."""


def selected_kinds() -> list[object]:
    """The kinds to run, as parameters of a fixture."""
    names = os.environ.get("CONFORMANCE_ENGINES", DEFAULT_KINDS).split(",")
    return [pytest.param(name, marks=_MARKS.get(name, ())) for name in names]
