"""The paged engine with adapters: answers of merged models, mixed batches, broken adapters, a small memory."""

from __future__ import annotations

import asyncio
import shutil

import pytest
import tokenizers
import torch
from peft import PeftModel

from pipeline.weights.merging.adapter_merge import merge_adapters
from serving.adapters.combination import Combination
from serving.config import Settings
from serving.engine import create_engine
from serving.errors import AdapterError, SettingError, UnknownAdapterError
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.types import GenerationRequest, SamplingParams
from serving.weights.adapter_files import adapter_digest
from tests import tiny_tokenizers
from tests.pipeline.fetching.hub_server import Hub
from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.models import tiny_checkpoints

TOKENIZER = tiny_tokenizers.byte_level()
PROMPTS = [tuple(TOKENIZER.encode(text)) for text in ("errors by route", "errors by name", "p99")]
KINDS = {
    "all": {"rank": 4},
    "high": {"rank": 17, "modules": ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"]},
    "stabilized": {"rank": 6, "config": {"use_rslora": True}},
    "patterns": {"rank": 3, "config": {"r": 8, "rank_pattern": {".*_proj": 3}, "alpha_pattern": {"o_proj": 30}}},
    "half": {"rank": 8, "dtype": torch.float16},
    "down": {"rank": 1, "modules": ["mlp.down_proj"]},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """transformers' model and its folder."""
    folder = tmp_path_factory.mktemp("base")
    model = tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size)
    tiny_checkpoints.save(model, folder)
    tiny_tokenizers.save(TOKENIZER, folder)
    return model, folder


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    weights = load_with_kernels(model[1], ReferenceKernels()).weights.decoder
    kinds = {name: write_adapter(root / name, weights, seed=i, **kind) for i, (name, kind) in enumerate(KINDS.items())}
    return kinds | {"copy": shutil.copytree(kinds["all"], root / "copy")}


@pytest.fixture
def start(model, folders, tmp_path):
    """Start an engine with some of the adapters; `more` adds to all entries."""
    engines = []

    def start(names=tuple(KINDS), more=None, base=model[1], **settings):
        registry = write_registry(tmp_path / "adapters.yaml", {name: folders[name] for name in names}, **more or {})
        known = {"engine": "paged", "weights_dir": base, "num_threads": 1, "dtype": "float32", "max_model_len": 128}
        engines.append(create_engine(Settings(**{**known, "adapters": registry, **settings})))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def ask(prompt, adapter, number=0, max_tokens=12):
    return GenerationRequest(f"{adapter}-{number}-{id(prompt)}", prompt, SamplingParams(max_tokens), adapter=adapter)


async def together(engine, requests):
    return [answer.token_ids for answer in await asyncio.gather(*(collect(engine, request) for request in requests))]


def merged_tokens(model, folder, prompt, count=12):
    """Greedy tokens of transformers' model with the adapter merged into it by PEFT."""
    base = tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size)
    base.load_state_dict(model.state_dict())
    merged = base if folder is None else PeftModel.from_pretrained(base, folder).merge_and_unload()
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + count:
            token = int(merged(torch.tensor([tokens])).logits[0, -1].argmax())
            if token in TOKENIZER.eos_token_ids:
                break
            tokens.append(token)
    return tuple(tokens[len(prompt) :])


async def test_each_adapter_answers_as_its_merged_model_in_one_mixed_batch(model, folders, start):
    requests = [ask(prompt, name) for prompt in PROMPTS for name in (None, *KINDS)]
    answers = await together(start(), requests)
    expected = [merged_tokens(model[0], r.adapter and folders[r.adapter], r.prompt_token_ids) for r in requests]
    assert answers == expected
    assert len(set(answers[: len(KINDS) + 1])) > len(KINDS) // 2  # they do differ


@pytest.mark.parametrize("quantize", [tiny_checkpoints.quantize, tiny_checkpoints.compress])
async def test_on_a_quantized_base_answers_are_the_same_alone_and_in_a_batch(tmp_path, start, quantize):
    fresh = tiny_checkpoints.tiny_llama(vocab_size=TOKENIZER.vocab_size)
    base = tiny_checkpoints.save(fresh, tmp_path / "quantized", torch.float16)
    tiny_tokenizers.save(TOKENIZER, base)
    quantize(base, fresh)
    engine = start(base=base, dtype="auto")
    requests = [ask(PROMPTS[0], name) for name in (None, *KINDS)]
    batch = await together(engine, requests)
    assert [(await collect(engine, ask(PROMPTS[0], name, 1))).token_ids for name in (None, *KINDS)] == batch


async def test_prefixes_and_recent_answers_are_reused_within_an_adapter_only(start):
    engine = start(("all", "copy"), block_size=4)
    first = await collect(engine, ask(PROMPTS[0], "all"))
    again = await collect(engine, ask(PROMPTS[0], "all", 1))
    for other in (None, "copy"):
        assert (await collect(engine, ask(PROMPTS[0], other))).metrics.cached_token_count == 0
    assert again.token_ids == first.token_ids
    assert again.metrics.cached_token_count > 0


async def test_a_broken_adapter_fails_only_its_own_requests_and_can_be_repaired(folders, start, tmp_path):
    broken = shutil.copytree(folders["half"], tmp_path / "broken")
    data = (broken / "adapter_model.safetensors").read_bytes()
    (broken / "adapter_model.safetensors").write_bytes(data[:-8])
    folders = {**folders, "broken": broken}
    registry = write_registry(tmp_path / "list.yaml", {name: folders[name] for name in ("half", "broken")})
    engine = start(adapters=registry)
    results = await asyncio.gather(
        *(collect(engine, ask(PROMPTS[0], name)) for name in ("half", "broken", None)), return_exceptions=True
    )
    assert isinstance(results[1], AdapterError)
    assert "adapter 'broken' cannot be loaded" in str(results[1])
    (broken / "adapter_model.safetensors").write_bytes(data)
    assert (await collect(engine, ask(PROMPTS[0], "broken"))).token_ids == results[0].token_ids


async def test_names_are_not_paths_and_unknown_ones_list_the_known(folders, start):
    engine = start(("all", "down"))
    for name in ("missing", str(folders["all"]), "../all", ""):
        with pytest.raises(UnknownAdapterError, match="is unknown; this server has all, down"):
            await collect(engine, ask(PROMPTS[0], name))


def test_settings_without_effect_and_pinned_adapters_that_do_not_load_fail_at_the_start(start, tmp_path):
    with pytest.raises(SettingError, match="ADAPTER_MEMORY_MB=5 would be ignored without ADAPTERS"):
        start(adapters=None, adapter_memory_mb=5)
    with pytest.raises(AdapterError, match="rank 4, the limit is 3"):
        start(("all",), {"pinned": "true", "max_rank": "3"})


async def test_a_combination_answers_as_the_model_that_its_merged_folder_is_merged_into(
    model, folders, start, tmp_path
):
    names = ("all", "down", "half")
    registry = write_registry(tmp_path / "list.yaml", {name: folders[name] for name in names})
    entry = "  - name: sum\n    combine: {method: cat, of: {all: 0.75, down: 2, half: -0.5}}\n"
    registry.write_text(registry.read_text() + entry)
    merge_adapters([folders[name] for name in names], Combination("cat", names, (0.75, 2, -0.5)), tmp_path / "sum")
    requests = [ask(prompt, name) for prompt in PROMPTS for name in ("sum", "all")]
    answers = await together(start(adapters=registry), requests)
    merged = {"sum": tmp_path / "sum", "all": folders["all"]}
    assert answers == [merged_tokens(model[0], merged[r.adapter], r.prompt_token_ids) for r in requests]
    assert answers[0] != answers[1]


async def test_an_adapter_with_a_chat_template_of_its_own_is_refused(folders, start, tmp_path):
    folder = shutil.copytree(folders["all"], tmp_path / "chatty")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    engine = start(adapters=write_registry(tmp_path / "list.yaml", {"chatty": folder}))
    with pytest.raises(AdapterError, match="has a chat template, which differs from the base's"):
        await collect(engine, ask(PROMPTS[0], "chatty"))


@pytest.fixture
def web(folders):
    """A web server with one of the adapters, and its source and digest."""
    hub = Hub({"org/all": {path.name: path.read_bytes() for path in folders["all"].iterdir()}})
    yield hub, f"{hub.url}/plain/org/all", adapter_digest(folders["all"])
    hub.close()


async def test_a_remote_adapter_answers_as_its_folder_also_when_its_source_is_gone(start, web, tmp_path):
    hub, source, digest = web
    registry = write_registry(tmp_path / "list.yaml", {"far": source}, digest=digest)
    expected = (await collect(start(("all",)), ask(PROMPTS[0], "all"))).token_ids
    settings = {"adapters": registry, "adapter_cache_dir": tmp_path / "cache"}
    assert (await collect(start(**settings), ask(PROMPTS[0], "far"))).token_ids == expected
    hub.repos.clear()
    assert (await collect(start(**settings), ask(PROMPTS[0], "far"))).token_ids == expected


async def test_what_is_not_what_the_list_says_is_never_used_and_others_run_on(start, web, tmp_path):
    _, source, digest = web
    registry = write_registry(tmp_path / "list.yaml", {"far": source}, digest="sha256:" + "0" * 64)
    engine = start(adapters=registry, adapter_cache_dir=tmp_path / "cache")
    results = await asyncio.gather(
        *(collect(engine, ask(PROMPTS[0], name)) for name in ("far", None)), return_exceptions=True
    )
    assert isinstance(results[0], AdapterError) and digest in str(results[0]) and source not in str(results[0])
    assert results[1].token_ids


async def test_sources_in_requests_are_refused_unless_they_are_allowed(start, folders):
    for engine in (start(("all",)), start(adapters=None, adapter_sources="hf://org/")):
        with pytest.raises(UnknownAdapterError, match=r"must begin with what the operator allows \(ADAPTER_SOURCES\)"):
            await collect(engine, ask(PROMPTS[0], "hf://other/name@main#" + adapter_digest(folders["all"])))


async def test_tokens_that_an_adapter_adds_are_read_and_written(tmp_path):
    """The base's embedding has a row for `<call>`, which only the adapter's tokenizer knows."""
    base, own, extra = tmp_path / "base", tmp_path / "own", TOKENIZER.vocab_size
    base.mkdir()
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=extra + 1), base)
    tiny_tokenizers.save(TOKENIZER, base)
    write_adapter(own, load_with_kernels(base, ReferenceKernels()).weights.decoder)
    backend = tokenizers.Tokenizer.from_str(TOKENIZER.to_json())
    backend.add_tokens(["<call>"])
    backend.save(str(own / "tokenizer.json"))
    registry = write_registry(tmp_path / "list.yaml", {"own": own}, task=str(own))
    settings = {"engine": "paged", "weights_dir": base, "num_threads": 1, "max_model_len": 128, "adapters": registry}
    engine = create_engine(Settings(**settings))
    request = GenerationRequest("call", (extra,), SamplingParams(max_tokens=40, repetition_penalty=0.01), adapter="own")
    answer = await collect(engine, request)
    engine.close()
    assert set(answer.token_ids) == {extra}  # the penalty makes it repeat the prompt's only token
    assert answer.text == "<call>" * len(answer.token_ids)
