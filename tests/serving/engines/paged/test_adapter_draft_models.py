"""Adapters that bring a draft model: the same answers, fewer passes, and memory that is freed with the adapter."""

from __future__ import annotations

import asyncio
import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.adapters.registry import known_adapters
from serving.config import Settings
from serving.drafting.load_drafter import DraftModelLoader
from serving.drafting.speculative import MeasuredCost
from serving.engine import create_engine
from serving.engines.paged.adapters import draft_model_of, open_adapters
from serving.errors import AdapterError
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.types import GenerationRequest, SamplingParams
from serving.weights.adapter_files import adapter_digest
from serving.weights.draft_weights import DRAFT_MODEL
from tests import tiny_tokenizers
from tests.draft_models import fit_draft_model
from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.models import tiny_checkpoints

TOKENIZER = tiny_tokenizers.byte_level()
BEGIN = TOKENIZER.encode("#")
PROMPTS = [(*BEGIN, *TOKENIZER.encode(text, add_bos=False)) for text in ("errors by route", "errors by name", "p99")]
NAMES = ("first", "second")
LENGTH = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size), folder)
    tiny_tokenizers.save(TOKENIZER, folder)
    return folder


@pytest.fixture(scope="module")
def weights(base):
    return load_with_kernels(base, ReferenceKernels()).weights


@pytest.fixture(scope="module")
def plain(base, weights, tmp_path_factory) -> dict[str, Path]:
    """Folders of two adapters without draft models."""
    root = tmp_path_factory.mktemp("plain")
    return {name: write_adapter(root / name, weights.decoder, seed=seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def start(base, tmp_path) -> Iterator:
    """Start an engine with adapters of these folders, and perhaps more lines of the list."""
    engines = []

    def start(folders, more="", **changes):
        registry = write_registry(tmp_path / "adapters.yaml", folders)
        registry.write_text(registry.read_text() + more)
        known = {"engine": "paged", "weights_dir": base, "num_threads": 1, "dtype": "float32", "max_model_len": 128}
        engines.append(create_engine(Settings(**{**known, "adapters": registry, **changes})))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(engine, prompt, adapter, **sampling):
    params = SamplingParams(**{"max_tokens": LENGTH, **sampling})
    return collect(engine, GenerationRequest(f"{adapter}-{prompt}", prompt, params, adapter=adapter))


async def ask_all(engine, **sampling):
    answers = await asyncio.gather(*(ask(engine, p, name, **sampling) for p in PROMPTS for name in (None, *NAMES)))
    return [(answer.token_ids, answer.logprobs) for answer in answers]


@pytest.fixture
async def drafting(start, plain, weights, tmp_path) -> dict[str, Path]:
    """The same folders; the first one has a draft model that knows the adapter's answers."""
    engine = start(plain, speculation="off")
    answers = [(prompt, (await ask(engine, prompt, "first")).token_ids) for prompt in PROMPTS]
    folder = shutil.copytree(plain["first"], tmp_path / "first")
    fit_draft_model(folder / DRAFT_MODEL, weights.embedding, TOKENIZER, answers)
    return {**plain, "first": folder}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.3, "logprobs": 2}])
async def test_answers_are_those_without_drafts_in_a_mixed_batch(start, plain, drafting, sampling) -> None:
    expected = await ask_all(start(plain, speculation="off"), **sampling)
    assert await ask_all(start(drafting), **sampling) == expected
    small = {"block_size": 4, "max_num_batched_tokens": 24}  # prompts in chunks, beside others' drafts
    assert await ask_all(start(drafting, **small), **sampling) == expected


async def test_a_draft_model_saves_passes_and_only_for_its_own_adapter(start, plain, drafting, monkeypatch) -> None:
    monkeypatch.setattr(MeasuredCost, "add", lambda *_, **__: None)  # else passes would depend on the time of steps
    engine, without = start(drafting), start(plain)
    for name in (None, *NAMES):
        for prompt in PROMPTS:
            answer, other = await ask(engine, prompt, name), await ask(without, prompt, name)
            passes, before = answer.metrics.model_passes, other.metrics.model_passes
            assert passes < before / 2 if name == "first" else passes == before


async def test_a_combination_may_have_the_draft_model_that_the_list_names(start, plain, drafting) -> None:
    answers = []
    for line in ("", f"    draft_model: {drafting['first'] / DRAFT_MODEL}\n"):
        more = f"  - name: both\n    combine: {{method: cat, of: {{first: 1, second: 0.01}}}}\n{line}"
        answers.append(await ask(start(plain, more), PROMPTS[0], "both"))
    without, drafted = answers
    assert drafted.token_ids == without.token_ids
    assert drafted.metrics.drafted_by_kind["model"] > 0 and "model" not in without.metrics.drafted_by_kind


async def test_a_draft_model_is_counted_and_freed_with_its_adapter(base, weights, drafting, tmp_path) -> None:
    registry = write_registry(tmp_path / "list.yaml", dict.fromkeys(NAMES, drafting["first"]))
    models = DraftModelLoader(TOKENIZER, lambda: weights.embedding)
    sizes = {}
    for speculation in ("off", "auto"):
        settings = Settings(
            engine="paged", weights_dir=base, adapters=registry, speculation=speculation, adapter_memory_mb=2
        )
        store = open_adapters(settings, known_adapters(settings), weights, models, lambda name, lora, golden: None)
        async with store.lease("first") as lora:
            model = draft_model_of(lora)
            sizes[speculation] = store.in_memory["first"]
        if speculation == "auto":
            reference = weakref.ref(model)
            del lora, model
            assert reference() is not None, "it stays while there is memory"
            async with store.lease("second"):
                gc.collect()
                assert (list(store.in_memory), reference()) == (["second"], None)
        store.close()
    assert sizes["off"] < 1_000_000 < sizes["auto"] < 2_000_000


async def test_a_broken_draft_model_fails_its_adapter_alone(start, drafting) -> None:
    """It is in the digest, so that a download is checked, and it is not read where nothing is drafted."""
    before = adapter_digest(drafting["first"])
    (drafting["first"] / DRAFT_MODEL).write_bytes(b"nothing")
    assert adapter_digest(drafting["first"]) != before
    engine = start(drafting)
    message = "adapter 'first' cannot be loaded: draft.model is not a valid drafter file"
    with pytest.raises(AdapterError, match=message):
        await ask(engine, PROMPTS[0], "first")
    for answered, name in ((engine, "second"), (engine, None), (start(drafting, speculation="off"), "first")):
        assert (await ask(answered, PROMPTS[0], name)).token_ids
