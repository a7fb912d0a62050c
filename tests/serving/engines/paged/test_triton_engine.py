"""The whole engine on the Triton kernels gives the CPU's answers in float32, with and without drafts.

Interpreted, or compiled where there is a GPU.
"""

from __future__ import annotations

import asyncio

import pytest

from serving.config import Settings
from serving.constraints import LarkConstraint
from serving.devices import has_cuda_device
from serving.engine import create_engine
from serving.engines.paged.scheduler import Scheduler
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.kernels.triton.placing import ON_THE_GPU
from tests.serving.models import tiny_checkpoints

pytestmark = ON_THE_GPU
TRITON = "cuda" if has_cuda_device() else "triton-interpreter"

SHARED = list(b"a prompt that begins alike; ")
ENDS = (b"one", b"another, which is longer")
GRAMMAR = LarkConstraint('start: "abcdefgh" | "abcxyz"')


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A random Llama of one layer with 4-bit weights, because the interpreter takes milliseconds a tile."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = tiny_tokenizers.byte_level()
    model = tiny_checkpoints.tiny_llama(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
    )
    tiny_checkpoints.save(model, folder)
    tiny_checkpoints.quantize(folder, model, group_size=32)
    tiny_tokenizers.save(tokenizer, folder)
    return folder


def requests():
    """Two that share a prefix and give log probabilities, and one with forced tokens."""
    sampling = SamplingParams(max_tokens=7, logprobs=1)
    plain = [GenerationRequest(f"r{i}", tuple(SHARED + list(end)), sampling) for i, end in enumerate(ENDS)]
    return [*plain, GenerationRequest("constrained", tuple(SHARED), SamplingParams(max_tokens=9), GRAMMAR)]


def answers(folder, device, at_once, **settings):
    """The answers of an engine that is started for them."""
    engine = create_engine(Settings(engine="paged", weights_dir=folder, device=device, dtype="float32", **settings))

    async def ask():
        if at_once:
            return await asyncio.gather(*(collect(engine, request) for request in requests()))
        return [await collect(engine, request) for request in requests()]

    try:
        return asyncio.run(ask())
    finally:
        engine.close()


@pytest.fixture(scope="module")
def plain(weights):
    """One request after the other, one token a pass, nothing reused."""
    pytest.importorskip(
        "triton", reason="triton is not installed; scripts/test installs it from requirements/dev.no-deps.txt"
    )
    return answers(weights, TRITON, False, speculation="off", prefix_caching=False)


def test_tokens_are_those_of_the_cpu_s_kernels(weights, plain):
    expected = answers(weights, "cpu", True, speculation="off")
    assert [answer.token_ids for answer in plain] == [answer.token_ids for answer in expected]
    for found, wanted in zip(plain, expected, strict=True):
        for mine, theirs in zip(found.logprobs, wanted.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_drafts_batches_chunks_reuse_and_preemption_change_no_bit(weights, plain, monkeypatch):
    """All requests at once in prompt chunks of 20 tokens; they do not fit the five blocks together."""
    preempted: list[str] = []
    schedule = Scheduler.schedule

    def watched(self):
        output = schedule(self)
        preempted.extend(request.request_id for request in output.preempted)
        return output

    monkeypatch.setattr(Scheduler, "schedule", watched)
    found = answers(weights, TRITON, True, max_num_batched_tokens=20, num_blocks=5)
    assert [(a.token_ids, a.logprobs) for a in found] == [(a.token_ids, a.logprobs) for a in plain]
    assert sum(answer.metrics.draft_token_count for answer in found) > 0, "nothing was drafted"
    assert preempted
