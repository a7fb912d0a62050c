"""The whole engine on the Triton kernels gives the CPU's answers in float32, with and without drafts and adapters.

Interpreted, or compiled where there is a GPU.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from lab.gpu.engine_checkpoint import TINY, write_weights
from serving.config import Settings
from serving.constraints import LarkConstraint
from serving.devices import has_cuda_device
from serving.engine import create_engine
from serving.engines.paged.scheduler import Scheduler
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.types import GenerationRequest, SamplingParams
from tests import tiny_tokenizers
from tests.serving.engines.paged.adapter_folders import write_adapter, write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.kernels.triton.placing import ON_THE_GPU

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
    sizes = {"vocab_size": tokenizer.vocab_size, "intermediate_size": 64, "num_hidden_layers": 1}
    write_weights(folder, {**TINY, **sizes, "max_position_embeddings": 96})
    tiny_tokenizers.save(tokenizer, folder)
    return folder


def requests():
    """Two that share a prefix and give log probabilities, and one with forced tokens."""
    sampling = SamplingParams(max_tokens=7, logprobs=1)
    plain = [GenerationRequest(f"r{i}", tuple(SHARED + list(end)), sampling) for i, end in enumerate(ENDS)]
    return [*plain, GenerationRequest("constrained", tuple(SHARED), SamplingParams(max_tokens=9), GRAMMAR)]


def answers(folder, device, at_once, asked=None, **settings):
    """The answers of an engine that is started for them."""
    asked = requests() if asked is None else asked
    engine = create_engine(Settings(engine="paged", weights_dir=folder, device=device, dtype="float32", **settings))

    async def ask():
        if at_once:
            return await asyncio.gather(*(collect(engine, request) for request in asked))
        return [await collect(engine, request) for request in asked]

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


@pytest.fixture
def adapters(weights, tmp_path):
    """A list of two of different rank, type and modules."""
    decoder = load_with_kernels(weights, ReferenceKernels()).weights.decoder
    kinds = {
        "low": {"rank": 3, "dtype": torch.float16},
        "high": {"rank": 17, "modules": ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]},
    }
    folders = {
        name: write_adapter(tmp_path / name, decoder, seed=i, **kind) for i, (name, kind) in enumerate(kinds.items())
    }
    return write_registry(tmp_path / "adapters.yaml", folders)


def test_adapters_in_one_batch_give_the_tokens_of_the_cpu_s_kernels(weights, plain, adapters):
    """Beside a request of the base, whose answer has the bits that it has without them."""
    asked = [
        GenerationRequest(
            f"{name} {end}", tuple(SHARED + list(end)), SamplingParams(max_tokens=7, logprobs=1), adapter=name
        )
        for name in (None, "low", "high")
        for end in ENDS[: 1 if name is None else 2]
    ]
    found, expected = (
        answers(weights, device, True, asked, speculation="off", adapters=adapters) for device in (TRITON, "cpu")
    )
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert len({answer.token_ids for answer in found}) == len(asked), "or the check finds nothing"
    assert (found[0].token_ids, found[0].logprobs) == (plain[0].token_ids, plain[0].logprobs)
    for mine, theirs in zip(found, expected, strict=True):
        assert [one.logprob for one in mine.logprobs] == pytest.approx(
            [one.logprob for one in theirs.logprobs], abs=1e-4
        )
