"""The engines that the suite runs against, and what each needs to start.

CONFORMANCE_ENGINES names them, separated by commas; CONFORMANCE_WEIGHTS is the folder for those that
take the default weights (vLLM's CPU build needs an unquantized one on some machines). To hold
another engine to the suite, add a function and a line in `KINDS`.

    CONFORMANCE_ENGINES=vllm CONFORMANCE_WEIGHTS=weights/base pytest tests/conformance
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.fake_engine import FakeEngine
from serving.text import Tokenizer
from tests import tiny_tokenizers

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / os.environ.get("CONFORMANCE_WEIGHTS", "weights/honeycomb-nlq")
UNQUANTIZED = ROOT / "weights" / "unquantized"  # the same model; scripts/test --vllm makes it
DEFAULT_KINDS = "fake,transformers,paged,paged-default"
MAX_NUM_SEQS = 8
MAX_QUEUE = 24
MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Kind:
    """An engine with weights.

    Args:
        tokenizer: of the weights.
        start: a new engine with the limits above.
        same_share: of greedy answers that must be the same alone and in company; 1 where arithmetic
            does not depend on the batch.
        model_dir: weights that a plain reference can load in fp32 to give the same text; None where
            there is no model.
        agreement: share of greedy queries that must be those of our own engine on the same weights,
            measured as docs/engines.md says; None where that would be our engine against itself.
    """

    tokenizer: Tokenizer
    start: Callable[[], Engine]
    same_share: float = 1.0
    model_dir: Path | None = None
    agreement: float | None = None


def limits(engine: str, weights_dir: Path) -> Settings:
    """An engine small enough to fill."""
    return Settings(
        engine=engine,
        weights_dir=weights_dir,
        max_num_seqs=MAX_NUM_SEQS,
        max_queue=MAX_QUEUE,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=64,  # prompts longer than this come in chunks
        num_threads=1,  # tiny matrices gain nothing from more, and lose much on a busy machine
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

    return Kind(tokenizer, start)


def tiny_checkpoint(folder: Path) -> Tokenizer:
    """A random two-layer Llama with a byte-level vocabulary; many tokens end it."""
    from tests.serving.models import tiny_checkpoints

    tokenizer = tiny_tokenizers.byte_level(num_end_tokens=24)
    model = tiny_checkpoints.tiny_llama(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=MAX_MODEL_LEN
    )
    tiny_checkpoints.save(model, folder)
    tiny_tokenizers.save(tokenizer, folder)
    return tokenizer


def _transformers(folder: Path) -> Kind:
    from tests.engines import transformers_engine

    tokenizer = tiny_checkpoint(folder)
    return Kind(tokenizer, lambda: transformers_engine.create(limits("transformers", folder)))


def _paged(folder: Path) -> Kind:
    tokenizer = tiny_checkpoint(folder)
    return Kind(tokenizer, lambda: create_engine(limits("paged", folder)), model_dir=folder)


def _paged_default(folder: Path) -> Kind:
    return _default_weights("paged")


def _vllm(folder: Path) -> Kind:
    assert importlib.util.find_spec("vllm"), "this environment has no vLLM; scripts/test --vllm makes one"
    # bfloat16 sums depend on the batch. 59 of 62 queries were ours; 0.85 is four standard errors below.
    return _default_weights("vllm", same_share=0.9, agreement=0.85)


def _default_weights(engine: str, *, same_share: float = 1.0, agreement: float | None = None) -> Kind:
    assert (WEIGHTS / "model.safetensors").is_file(), f"{WEIGHTS} is not built; scripts/build_weights does it"

    def start() -> Engine:
        return create_engine(limits(engine, WEIGHTS))

    return Kind(Tokenizer.from_dir(WEIGHTS), start, same_share, agreement=agreement)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "fake": _fake,
    "transformers": _transformers,
    "paged": _paged,
    "paged-default": _paged_default,
    "vllm": _vllm,
}
_MARKS = {"paged-default": pytest.mark.weights, "vllm": pytest.mark.vllm}


def chosen() -> list[object]:
    """The kinds to run, as parameters of a fixture."""
    names = os.environ.get("CONFORMANCE_ENGINES", DEFAULT_KINDS).split(",")
    return [pytest.param(name, marks=_MARKS.get(name, ())) for name in names]
