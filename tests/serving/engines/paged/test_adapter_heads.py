"""Adapters with trained heads: the same answers whatever the heads guess, and fewer passes if they guess right."""

from __future__ import annotations

import asyncio

import pytest
import torch
from peft import PeftModel

from serving.adapters.known_adapters import known_adapters
from serving.config import Settings
from serving.drafting.load_drafter import DraftModelLoader
from serving.drafting.speculative import MeasuredCost
from serving.engine import create_engine
from serving.engines.paged.adapters import open_adapters
from serving.errors import AdapterError
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.draft_heads import fitted_heads, random_heads
from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.models import tiny_checkpoints

TOKENIZER = tiny_tokenizers.byte_level()
PROMPTS = [tuple(TOKENIZER.encode(text)) for text in ("errors by route", "errors by name", "p99")]
NAMES = ("first", "second")
LENGTH = 24
KINDS = ("trained", "random", "adversarial")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size), folder)
    tiny_tokenizers.save(TOKENIZER, folder)
    return folder


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    root, weights = tmp_path_factory.mktemp("adapters"), load_with_kernels(base, ReferenceKernels()).weights.decoder
    return {name: write_adapter(root / name, weights, seed=seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def settings(base, folders, tmp_path):
    """Settings of an engine whose adapters have these heads, or none."""

    def settings(heads=None, more="", **changes):
        registry = write_registry(tmp_path / "adapters.yaml", folders)
        lines = registry.read_text().splitlines()
        for name, path in (heads or {}).items():
            lines.insert(lines.index(f"  - name: {name}") + 1, f"    draft_heads: {path}")
        registry.write_text("\n".join(lines) + "\n" + more)
        known = {"engine": "paged", "weights_dir": base, "num_threads": 1, "dtype": "float32", "max_model_len": 128}
        return Settings(**{**known, "adapters": registry, **changes})

    return settings


@pytest.fixture
def start(settings):
    """Start an engine with such settings."""
    engines = []

    def start(*heads, **changes):
        engines.append(create_engine(settings(*heads, **changes)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(engine, prompt, adapter, **sampling):
    params = SamplingParams(**{"max_tokens": LENGTH, **sampling})
    return collect(engine, GenerationRequest(f"{adapter}-{prompt}", prompt, params, adapter=adapter))


async def ask_all(engine, **sampling):
    return await asyncio.gather(*(ask(engine, p, name, **sampling) for p in PROMPTS for name in (None, *NAMES)))


@pytest.fixture(scope="module")
def heads(base, folders, tmp_path_factory):
    """For each kind, the heads of each adapter."""
    root = tmp_path_factory.mktemp("heads")
    made = {kind: {} for kind in KINDS}
    for name in NAMES:
        model = PeftModel.from_pretrained(tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size), folders[name])
        model = model.merge_and_unload()
        head, answers = model.lm_head.weight.detach(), [answer_of(model, prompt) for prompt in PROMPTS]
        made["trained"][name] = fitted_heads(root / f"trained-{name}", head, answers)
        made["adversarial"][name] = fitted_heads(root / f"adversarial-{name}", head, answers, shift=1)
        made["random"][name] = random_heads(root / f"random-{name}", head.shape[1], range(len(head)))
    return made


@torch.no_grad()
def answer_of(model, prompt):
    """A greedy answer, and the hidden states that have chosen its tokens."""
    tokens = list(prompt)
    for _ in range(LENGTH):
        output = model(torch.tensor([tokens]), output_hidden_states=True)
        tokens.append(int(output.logits[0, -1].argmax()))
    return output.hidden_states[-1][0, len(prompt) - 1 :], tokens[len(prompt) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.3, "logprobs": 2}])
async def test_answers_are_those_without_drafts_in_a_mixed_batch(start, heads, kind, sampling):
    plain = await ask_all(start(speculation="off"), **sampling)
    small = {"block_size": 4, "max_num_batched_tokens": 24}  # prompts in chunks, beside others' drafts
    for settings in ({}, small):
        answers = await ask_all(start(heads[kind], **settings), **sampling)
        assert [(a.token_ids, a.logprobs) for a in answers] == [(a.token_ids, a.logprobs) for a in plain]


async def test_heads_that_guess_right_save_passes_and_only_for_their_own_adapter(start, heads, monkeypatch):
    monkeypatch.setattr(MeasuredCost, "add", lambda *_, **__: None)  # else passes would depend on the time of steps
    engine, without = start({"first": heads["trained"]["first"]}), start()
    for name, fewer in (("first", True), ("second", False), (None, False)):
        for prompt in PROMPTS:
            answer, plain = await ask(engine, prompt, name), await ask(without, prompt, name)
            assert answer.token_ids == plain.token_ids
            passes = answer.metrics.model_passes
            assert passes < 0.5 * len(answer.token_ids) if fewer else passes == plain.metrics.model_passes


async def test_wrong_heads_are_no_longer_asked_after_a_while(start, heads):
    engine = start(heads["adversarial"])
    drafted = [(await ask(engine, PROMPTS[0], "first")).metrics.draft_token_count for _ in range(8)]
    assert drafted[-1] < drafted[0]


async def test_heads_take_memory_with_their_adapter_and_are_not_read_without_speculation(settings, base, heads):
    loaded, weights = {}, load_with_kernels(base, ReferenceKernels()).weights
    for speculation in ("off", "auto"):
        chosen = settings({"first": heads["trained"]["first"]}, speculation=speculation)
        models = DraftModelLoader(TOKENIZER, lambda: weights.embedding)
        store = open_adapters(chosen, known_adapters(chosen), weights, models, lambda name, lora, golden: None)
        async with store.lease("first"):
            loaded[speculation] = store.in_memory["first"]
        store.close()
    weight = 3 * (96 * 96 + 96) * 4
    assert loaded["auto"] - loaded["off"] == weight + 8 * TOKENIZER.vocab_size


async def test_heads_of_another_model_fail_their_adapter_alone(start, heads, tmp_path):
    engine = start({"first": random_heads(tmp_path / "wide", 97, [1]), "second": heads["random"]["second"]})
    with pytest.raises(AdapterError, match=r"adapter 'first' cannot be loaded: .*\[3, 97, 97\] where floats"):
        await ask(engine, PROMPTS[0], "first")
    assert (await ask(engine, PROMPTS[0], "second")).token_ids


async def test_a_combination_may_have_heads_too(start, heads):
    path = heads["random"]["first"]
    entry = "  - name: both\n    combine: {{method: cat, of: {{first: 1, second: 1}}}}\n{}"
    answers = []
    for line in (f"    draft_heads: {path}\n", ""):
        engine = start(more=entry.format(line))
        answers.append(await ask(engine, PROMPTS[0], "both"))
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].metrics.draft_token_count > answers[1].metrics.draft_token_count
