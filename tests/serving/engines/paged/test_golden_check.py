"""The paged engine holds an adapter to its golden prompts, which its merged model answered."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from pipeline.evaluate.golden_file import make_golden
from serving.adapters.golden import read_golden
from serving.adapters.registry import known_adapters
from serving.config import Settings
from serving.drafting.load_drafter import DraftModelLoader
from serving.engine import create_engine
from serving.engines.paged.adapters import open_adapters
from serving.errors import AdapterError, SettingError
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.models.lora_loader import load_lora
from serving.types import GenerationRequest, SamplingParams
from serving.weights.adapter_files import GOLDEN
from tests import tiny_tokenizers
from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.models import tiny_checkpoints

TOKENIZER = tiny_tokenizers.byte_level()
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TASK = {"task": "schema", "name": "tiny", "schema": SCHEMA, "template": "### Text:\n{text}\n### A:\n"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size), folder)
    tiny_tokenizers.save(TOKENIZER, folder)
    (folder / "task.json").write_text(json.dumps(TASK))
    return folder


@pytest.fixture(scope="module")
def golden_adapter(base, tmp_path_factory):
    """A random adapter whose golden prompts a model that it is merged into has answered."""
    folder, cases = tmp_path_factory.mktemp("adapter"), tmp_path_factory.mktemp("cases") / "cases.jsonl"
    cases.write_text("".join(json.dumps({"input": f"case {i}", "output": {"a": ""}}) + "\n" for i in range(5)))
    write_adapter(folder, load_with_kernels(base, ReferenceKernels()).weights.decoder, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTYPE", "float32")  # as below: the random model's logits are too close for bfloat16
        make_golden(folder, base=base, merged=None, cases=cases, task=None, count=3, length=8)
    return folder


@pytest.fixture
def start(base, tmp_path):
    engines = []

    def start(folder, more=None, **settings):
        registry = write_registry(tmp_path / "adapters.yaml", {"a": folder, "other": folder}, **more or {})
        known = {"engine": "paged", "weights_dir": base, "num_threads": 1, "dtype": "float32", "max_model_len": 128}
        engines.append(create_engine(Settings(**known, adapters=registry, **settings)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def wrong(golden_adapter, tmp_path):
    """The adapter with another last token in its second golden answer."""
    folder = shutil.copytree(golden_adapter, tmp_path / "wrong")
    lines = [json.loads(line) for line in (folder / GOLDEN).read_text().splitlines()]
    lines[1]["answer"][-1] ^= 1
    (folder / GOLDEN).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def ask(adapter, prompt=(1, 2, 3)):
    return GenerationRequest(f"ask-{adapter}", prompt, SamplingParams(max_tokens=6), adapter=adapter)


async def test_an_adapter_that_answers_as_its_merged_model_is_ready(start, golden_adapter):
    golden = read_golden(golden_adapter)
    assert len(golden) == 3 and len({prompt.answer for prompt in golden}) > 1  # they tell adapters apart
    assert (await collect(start(golden_adapter), ask("a"))).token_ids


async def test_one_that_answers_otherwise_is_refused_by_name_while_others_run_on(start, wrong):
    engine = start(wrong)
    refused, fine = await asyncio.gather(collect(engine, ask("a")), collect(engine, ask(None)), return_exceptions=True)
    assert isinstance(refused, AdapterError) and fine.token_ids
    assert f"adapter 'a' cannot be loaded: {GOLDEN}, line 2: on this base it differs" in str(refused)
    assert "ADAPTER_GOLDEN=false" in str(refused) and str(wrong) not in str(refused)


async def test_a_setting_turns_the_check_off(start, wrong):
    assert (await collect(start(wrong, adapter_golden=False), ask("a"))).token_ids


async def test_a_prompt_that_the_base_cannot_read_refuses_the_adapter(start, golden_adapter, tmp_path):
    folder = shutil.copytree(golden_adapter, tmp_path / "far")
    (folder / GOLDEN).write_text(json.dumps({"prompt": [10**6], "answer": [1], "ends": True}) + "\n")
    with pytest.raises(AdapterError, match=r"adapter 'a' cannot be loaded: .*1000000"):
        await collect(start(folder), ask("a"))


def test_a_pinned_one_that_fails_stops_the_start_and_the_setting_needs_adapters(start, wrong, base):
    with pytest.raises(AdapterError, match="line 2: on this base it differs"):
        start(wrong, {"pinned": "true"})
    with pytest.raises(SettingError, match="ADAPTER_GOLDEN=False would be ignored without ADAPTERS"):
        create_engine(Settings(engine="paged", weights_dir=base, adapter_golden=False))


async def test_nothing_that_was_computed_for_the_check_is_reused(start, golden_adapter):
    prompt = read_golden(golden_adapter)[0].prompt
    answer = await collect(start(golden_adapter, block_size=4), ask("a", prompt))
    assert answer.metrics.cached_token_count == 0


async def test_an_adapter_that_was_dropped_is_not_asked_again(base, golden_adapter, tmp_path):
    weights, asked = load_with_kernels(base, ReferenceKernels()).weights, []
    nbytes = load_lora(golden_adapter, weights.decoder, max_rank=4, max_bytes=10**6).lora.nbytes
    names = [f"a{number}" for number in range(10**6 // nbytes + 1)]  # one more than fit
    registry = write_registry(tmp_path / "adapters.yaml", dict.fromkeys(names, golden_adapter))
    settings = Settings(weights_dir=base, adapters=registry, adapter_memory_mb=1)

    def check(name, lora, prompts):
        asked.append((name, len(prompts)))

    models = DraftModelLoader(TOKENIZER, lambda: weights.embedding)
    store = open_adapters(settings, known_adapters(settings), weights, models, check)
    for name in names * 2:
        assert name not in store.in_memory
        async with store.lease(name):
            pass
    store.close()
    assert asked == [(name, 3) for name in names]
