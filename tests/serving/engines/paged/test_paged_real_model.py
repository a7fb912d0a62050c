"""The small model in fp32: batch, chunks, memory, caching and drafts do not change its greedy tokens."""

import asyncio

import pytest

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.constraints import LarkConstraint
from serving.drafting.drafter import Drafter
from serving.engines.paged.engine import create
from serving.engines.paged.request import Request
from serving.grammar.compiler import GrammarCompiler
from serving.models.config import read_config
from serving.models.loader import load_model
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationRequest, SamplingParams
from tests.serving.engines.paged.paged_engines import Answer, collect
from tests.serving.engines.paged.real_engine import assemble
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS

pytestmark = [pytest.mark.weights, NEEDS_WEIGHTS]

JSON = LarkConstraint(
    """start: "{\\"calculations\\": [" calc (", " calc)? "]}"
calc: "{\\"op\\": \\"" OP "\\"}"
OP: "COUNT" | "AVG"
"""
)
COLUMNS = "### Columns:\n['duration_ms', 'http.route', 'http.status_code', 'service.name', 'error', 'name']\n"
QUESTIONS = [
    "slowest traces",
    "errors by route",
    "how many requests a service",
    "p99 latency",
    "traffic",
    "500s",
]


@pytest.fixture(scope="module")
def model():
    return load_model(WEIGHTS, num_threads=1)  # more threads are slower on a busy machine


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_dir(WEIGHTS)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return GrammarCompiler(tokenizer, vocab_size=read_config(WEIGHTS).vocab_size)


class ReplayDrafter(Drafter):
    """Proposes the answers of an earlier run, every fifth token wrong."""

    def __init__(self, answers: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        self._answers = answers

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        answer = self._answers[tuple(request.token_ids[: request.num_prompt_tokens])]
        start = request.num_output_tokens
        coming = enumerate(answer[start : start + max_tokens], start)
        return [token + (place % 5 == 4) for place, token in coming]


@pytest.fixture
def run(model, tokenizer, grammars):
    """An engine's answers to the test's requests, all sent at once."""

    def run_(requests: list[GenerationRequest], **options: object) -> list[Answer]:
        async def ask_all() -> list[Answer]:
            return await asyncio.gather(*(collect(engine, request) for request in requests))

        engine = assemble(model, tokenizer, grammars, **options)
        try:
            answers = asyncio.run(ask_all())
            assert engine.stats().num_free_blocks == engine.stats().num_blocks
        finally:
            engine.close()
        return answers

    return run_


@pytest.fixture(scope="module")
def requests(tokenizer) -> list[GenerationRequest]:
    """Prompts that share their beginning, of different lengths; every other answer has a grammar."""
    made = []
    for i, question in enumerate(QUESTIONS):
        prompt = tokenizer.encode(f"{COLUMNS * (1 + i % 3)}\n### NLQ:\n{question!r}\n\n### Response:\n")
        sampling = SamplingParams(max_tokens=16)
        made.append(GenerationRequest(str(i), tuple(prompt), sampling, JSON if i % 2 else None))
    return made


@pytest.fixture(scope="module")
def plain(model, tokenizer, grammars, requests) -> list[tuple[int, ...]]:
    """The tokens of each request alone, without prefix reuse, its prompt in one chunk."""

    async def one_by_one() -> list[Answer]:
        return [await collect(engine, request) for request in requests]

    engine = assemble(model, tokenizer, grammars, max_num_seqs=1, prefix_caching=False)
    try:
        return [answer.token_ids for answer in asyncio.run(one_by_one())]
    finally:
        engine.close()


def test_the_batch_does_not_change_the_tokens(run, requests, plain):
    answers = run(requests, max_num_seqs=6, prefix_caching=False)
    assert [a.token_ids for a in answers] == plain


def test_prefix_reuse_does_not_change_the_tokens(run, requests, plain):
    answers = run(requests + [_renamed(r) for r in requests], max_num_seqs=2)
    assert [a.token_ids for a in answers] == plain * 2
    assert sum(a.metrics.cached_token_count for a in answers) > 150


def _renamed(request: GenerationRequest) -> GenerationRequest:
    return GenerationRequest(
        request.request_id + "-again", request.prompt_token_ids, request.sampling, request.constraint
    )


@pytest.mark.parametrize("budget", [16, 37])
def test_chunks_do_not_change_the_tokens(run, requests, plain, budget):
    answers = run(requests, max_num_batched_tokens=budget, prefix_caching=False)
    assert [a.token_ids for a in answers] == plain


def test_preemption_does_not_change_the_tokens(run, requests, plain):
    tokens = [len(r.prompt_token_ids) + 16 for r in requests]
    num_blocks = max(-(-max(tokens) // 16), sum(-(-n // 16) for n in tokens) // 4)
    answers = run(requests, num_blocks=num_blocks, prefix_caching=False)
    assert [a.token_ids for a in answers] == plain


@pytest.mark.parametrize("max_num_seqs", [1, 6])
def test_drafts_do_not_change_the_tokens(run, requests, plain, max_num_seqs):
    known = {r.prompt_token_ids: tokens for r, tokens in zip(requests, plain, strict=True)}
    answers = run(requests, drafter=ReplayDrafter(known), max_num_seqs=max_num_seqs)
    assert [a.token_ids for a in answers] == plain
    passes = sum(a.metrics.model_passes for a in answers)
    assert passes < 0.7 * sum(len(tokens) for tokens in plain)


def test_the_grammar_is_obeyed(run, requests):
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(max_tokens=60, temperature=temperature, seed=1)
        prompts = [r.prompt_token_ids for r in requests[:3]]
        asked = [GenerationRequest(str(i), p, sampling, JSON) for i, p in enumerate(prompts)]
        for answer in run(asked):
            ops = answer.text.removeprefix('{"calculations": [').removesuffix("]}").split(", ")
            assert set(ops) <= {'{"op": "COUNT"}', '{"op": "AVG"}'}
            assert len(ops) <= 2
            assert answer.finish_reason is FinishReason.STOP


async def test_an_engine_created_from_settings():
    settings = Settings(weights_dir=WEIGHTS, max_model_len=512, num_blocks=64, num_threads=1)
    engine = create(settings, Checkpoint.of(settings))
    try:
        assert engine.name == "paged"
        assert engine.max_model_len == 512
        await engine.health(timeout=60)
        assert engine.stats().num_blocks == 64
    finally:
        engine.close()
