"""With drafts, the real vLLM gives the tokens that it gives without, in float32, whatever happens to the requests.

One engine answers without drafts, one with; each is started once. DRAFT_REQUESTS sets how many requests are compared
with each kind of drafts (default 24).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.constraints import JsonSchemaConstraint, LarkConstraint
from serving.engines.vllm.engine import VllmEngine
from serving.engines.vllm.options import engine_args, set_environment
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.conformance.asking import LONG, Answer, answer
from tests.serving.models import tiny_checkpoints

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
NUM_REQUESTS = int(os.environ.get("DRAFT_REQUESTS", "24"))
KINDS = ("ours", "good", "adversarial", "random")
WORDS = "slowest traces count errors checkout search duration name today hour café 🙂 grouped"
SCHEMA = {
    "type": "object",
    "properties": {
        "column": {"enum": ["duration_ms", "name", "error"]},
        "limit": {"type": "integer", "minimum": 0, "maximum": 999},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["column", "limit", "note"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model; a few tokens end its answers."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = tiny_tokenizers.byte_level(num_end_tokens=4)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_checkpoints.tiny_qwen2(**sizes, vocab_size=tokenizer.vocab_size, eos_token_id=0)
    tiny_checkpoints.save(model, folder)
    tiny_tokenizers.save(tokenizer, folder)
    return folder


def settings(folder: Path, **values: object) -> Settings:
    """Prompts of more than 64 tokens are computed in chunks; with 8 requests or more some are preempted."""
    return Settings(
        engine="vllm",
        weights_dir=folder,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=32,
        max_num_batched_tokens=64,
        block_size=32,
        num_blocks=20,
        num_threads=1,
        **values,
    )


def start(chosen: Settings, answers: Path | None = None) -> VllmEngine:
    set_environment(chosen)
    from vllm.v1.engine.async_llm import AsyncLLM

    args = engine_args(chosen, Checkpoint.of(chosen))
    if answers is not None:
        from tests.serving.engines.vllm.odd_drafts import PROPOSER

        assert args.speculative_config is not None
        args.speculative_config["model"] = PROPOSER
        args.additional_config = {"answers": str(answers)}
    tokenizer = Tokenizer.from_dir(chosen.weights_dir)
    return VllmEngine(lambda: AsyncLLM.from_engine_args(args), tokenizer=tokenizer, max_num_seqs=32, max_queue=256)


def requests(folder: Path) -> list[GenerationRequest]:
    """Every second one has a grammar; some prompts are longer than a chunk and share their beginning."""
    tokenizer, words = Tokenizer.from_dir(folder), WORDS.split()
    made = []
    for i in range(NUM_REQUESTS):
        text = " ".join(words[(i * 5 + k * k) % len(words)] for k in range(4 + i % 9)) * (1 + i % 3)
        constraint = JsonSchemaConstraint(json.dumps(SCHEMA)) if i % 2 else None
        sampling = SamplingParams(max_tokens=3 + (i * 7) % 60)
        made.append(GenerationRequest(str(i), tuple(tokenizer.encode(text)[:150]), sampling, constraint))
    return made


async def ask_all(engine: VllmEngine, asked: Sequence[GenerationRequest], at_once: int) -> list[Answer]:
    places = asyncio.Semaphore(at_once)

    async def one(request: GenerationRequest) -> Answer:
        async with places:
            return await answer(engine, request)

    return await asyncio.gather(*map(one, asked))


def seen(answers: Sequence[Answer]) -> list[tuple[tuple[int, ...], str]]:
    return [(found.token_ids, found.finish_reason) for found in answers]


@pytest.fixture(scope="module")
def expected(weights: Path) -> list[Answer]:
    """The answers of vLLM without drafts."""
    with closing(start(settings(weights, speculation="off"))) as engine:
        return asyncio.run(ask_all(engine, requests(weights), at_once=8))


@pytest.fixture(scope="module")
def engine(weights: Path, expected: list[Answer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    known = {str(i): found.token_ids for i, found in enumerate(expected)}
    path = tmp_path_factory.mktemp("answers") / "answers.json"
    path.write_text(json.dumps(known))
    with closing(start(settings(weights, max_draft_tokens=12), path)) as engine:
        yield engine


def named(asked: Sequence[GenerationRequest], kind: str, suffix: str = "") -> list[GenerationRequest]:
    return [replace(request, request_id=f"{kind}-{request.request_id}-{suffix}") for request in asked]


@pytest.mark.parametrize("at_once", [1, 8, 32])
@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_tokens_and_finish_reasons_are_those_without_drafts(
    engine: VllmEngine, weights: Path, expected: list[Answer], kind: str, at_once: int
) -> None:
    found = await ask_all(engine, named(requests(weights), kind, str(at_once)), at_once)
    assert seen(found) == seen(expected)
    if kind == "good" and at_once == 1:
        passes = sum(found.metrics.model_passes for found in found)
        assert passes < 0.7 * sum(found.metrics.model_passes for found in expected), "drafts are accepted"


async def test_our_drafts_save_passes_where_a_grammar_forces_tokens(
    engine: VllmEngine, weights: Path, expected: list[Answer]
) -> None:
    asked = [request for request in requests(weights) if request.constraint and request.sampling.max_tokens > 20]
    found = await ask_all(engine, named(asked, "ours", "again"), at_once=1)
    before = sum(len(expected[int(request.request_id)].token_ids) for request in asked)
    assert sum(answer.metrics.model_passes for answer in found) < 0.8 * before


async def test_greedy_requests_beside_sampled_ones_are_right(
    engine: VllmEngine, weights: Path, expected: list[Answer]
) -> None:
    """vLLM's CPU build without the remedy of `draft_worker` gets these wrong, with its own drafters too."""
    asked = requests(weights)
    sampled = [
        replace(request, sampling=replace(request.sampling, temperature=0.8, top_p=0.9, top_k=20)) for request in asked
    ]
    both = [*named(asked, "good", "greedy"), *named(sampled, "good", "sampled")]
    mixed = [request for pair in zip(both[: len(asked)], both[len(asked) :], strict=True) for request in pair]
    found = await ask_all(engine, mixed, at_once=16)
    assert seen(found[::2]) == seen(expected)


async def test_a_seeded_sample_is_that_without_drafts_in_the_batch(engine: VllmEngine, weights: Path) -> None:
    """In float32 on a CPU rows do not depend on each other, so only random numbers could differ."""
    seeded = [
        replace(request, sampling=replace(request.sampling, temperature=0.9, seed=7)) for request in requests(weights)
    ][:6]
    alone = await ask_all(engine, named(seeded, "good", "seeded"), at_once=1)
    beside = [*named(seeded, "good", "again"), *named(requests(weights)[:10], "adversarial", "beside")]
    assert seen((await ask_all(engine, beside, at_once=16))[:6]) == seen(alone)


async def test_a_request_near_the_limit_of_the_context_leaves_the_others_right(
    engine: VllmEngine, weights: Path, expected: list[Answer]
) -> None:
    """vLLM would draft token 0 for all, for seeded requests too, whose random numbers depend on it."""
    asked = requests(weights)[:8]
    free = [request for request in asked if request.constraint is None]  # a grammar would refuse token 0
    seeded = [replace(request, sampling=replace(request.sampling, temperature=0.9, seed=7)) for request in free]
    alone = await ask_all(engine, named(seeded, "ours", "alone"), at_once=1)
    prompt = (Tokenizer.from_dir(weights).encode(WORDS) * 10)[:225]
    long = GenerationRequest("long", prompt, SamplingParams(max_tokens=30), LarkConstraint(LONG))
    beside = [*named([long], "ours"), *named(seeded, "ours", "beside"), *named(asked, "ours", "greedy")]
    found = await ask_all(engine, beside, at_once=16)
    assert len(found[0].token_ids) == 30, "it has reached the limit"
    assert seen(found[1 : 1 + len(seeded)]) == seen(alone)
    assert seen(found[1 + len(seeded) :]) == seen(expected[:8])


async def test_aborted_requests_leave_the_others_right(
    engine: VllmEngine, weights: Path, expected: list[Answer]
) -> None:
    asked = requests(weights)

    async def leave(request: GenerationRequest) -> None:
        async with aclosing(engine.generate(request)) as stream:
            async for _ in stream:
                return

    leaving = [asyncio.create_task(leave(request)) for request in named(asked, "ours", "leaves")]
    found = await ask_all(engine, named(asked, "ours", "stays"), at_once=16)
    await asyncio.gather(*leaving)
    assert seen(found) == seen(expected)
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)


async def test_two_ranks_agree_on_the_drafts(
    weights: Path, expected: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)  # of an engine of one rank in this process
    async with started(settings(weights, tensor_parallel_size=2)) as engine:
        found = await ask_all(engine, named(requests(weights), "ours"), at_once=8)
    assert seen(found) == seen(expected)


@asynccontextmanager
async def started(chosen: Settings) -> AsyncIterator[VllmEngine]:
    engine = await asyncio.to_thread(start, chosen)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)
