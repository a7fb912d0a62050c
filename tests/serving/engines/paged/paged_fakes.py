"""Fake models and drafters for tests of the paged engine, without tensors.

`FakeRunner` keeps a KV cache of (token, position) pairs in the blocks it is told to use, and the next
token is a hash of the tokens that it reads back through the block table. So a block that is wrongly
shared, overwritten or lost changes the output, and any schedule's output can be compared with `continue_`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch

from serving.drafting.drafter import Drafter
from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.request import Request
from serving.engines.paged.sampler import RunnerOutput
from serving.engines.paged.scheduler import Scheduler
from serving.engines.paged.step import RequestUpdate, ScheduledRequest, SchedulerOutput
from serving.errors import ServingError
from serving.kernels.base import MaskedProducts
from serving.kernels.reference import ReferenceKernels
from serving.types import FinishReason, GenerationRequest, SamplingParams
from tests.serving.engines.paged.block_checks import check_integrity

VOCAB_SIZE = 50
EOS = 0


def next_token(history: Sequence[int], adapter: str | None = None) -> int:
    """The fake model: any token, the end token about once in fifty."""
    return zlib.crc32(repr((adapter, list(history))).encode()) % VOCAB_SIZE


def continue_(prompt: Sequence[int], max_tokens: int, max_model_len: int = 10_000) -> list[int]:
    """The expected output: plain greedy decoding."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < max_model_len:
        token = next_token(tokens)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


class FakeRunner:
    """Executes a step on a KV cache of Python values."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.kv: dict[int, tuple[int, int]] = {}  # slot -> (token, position)
        self.num_rows: list[int] = []  # tokens computed in each step
        self.before_step: Callable[[SchedulerOutput], None] = lambda _: None
        self.failures: dict[str, ServingError] = {}

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        self.before_step(output)
        for item in output.scheduled:
            tokens = item.request.token_ids[item.start : item.end] + item.draft_token_ids
            for position, token in enumerate(tokens, start=item.start):
                self.kv[self._slot(item.request, position)] = (token, position)
        self.num_rows.append(output.num_scheduled_tokens)
        failures = {i.request.request_id for i in output.scheduled} & self.failures.keys()
        return RunnerOutput(
            [self._sample(item) if item.samples else [] for item in output.scheduled],
            {request_id: self.failures[request_id] for request_id in failures},
        )

    def _sample(self, item: ScheduledRequest) -> list[int]:
        tokens: list[int] = []
        for draft in [*item.draft_token_ids, None]:
            history = [self._read(item.request, p) for p in range(item.end + len(tokens))]
            tokens.append(next_token(history))
            if tokens[-1] != draft:
                break
        return tokens

    def _slot(self, request: Request, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _read(self, request: Request, position: int) -> int:
        token, written_at = self.kv[self._slot(request, position)]
        assert written_at == position
        return token


class HistoryModel:
    """Replaces `LlamaForCausalLM`: logits are random numbers, seeded by the tokens that attention would read.

    Its KV cache holds token ids, written and read through the metadata of the step.
    """

    screen = None

    def __init__(self, vocab_size: int) -> None:
        self.config = SimpleNamespace(vocab_size=vocab_size)
        self._block_size = 0

    def allocate_kv_caches(self, num_blocks: int, block_size: int) -> list[torch.Tensor]:
        self._block_size = block_size
        return [torch.full((num_blocks * block_size,), -1, dtype=torch.int32)]

    def populate(self, kv_caches: list[torch.Tensor]) -> None:
        """Its memory is there."""

    def forward(self, input_ids, positions, kv_caches, attention_metadata, lora=None) -> torch.Tensor:
        [cache] = kv_caches
        metadata = attention_metadata
        assert {t.dtype for t in (input_ids, positions, *vars(metadata).values())} == {torch.int32}
        cache[metadata.slot_mapping] = input_ids
        starts, hidden = metadata.query_start.tolist(), []
        for i, length in enumerate(metadata.context_lens.tolist()):
            blocks = metadata.block_tables[i][:, None] * self._block_size
            slots = (blocks + torch.arange(self._block_size)).flatten()[:length]
            history = cache[slots].tolist()
            places = positions[starts[i] : starts[i + 1]].tolist()
            assert places == list(range(length - len(places), length))
            hidden += [seed_of(history[: place + 1]) for place in places]
        return torch.tensor(hidden)[:, None]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = [logits_of(h, self.config.vocab_size) for h in hidden.flatten()]
        return torch.from_numpy(np.stack(rows))

    def compute_allowed_logits(self, hidden, rows, bitmasks, most) -> MaskedProducts:
        logits, one_hot = self.compute_logits(hidden), torch.eye(self.config.vocab_size)
        chosen = MaskedProducts.empty(len(rows), most)
        ReferenceKernels().masked_products(logits, one_hot, rows, bitmasks, chosen)
        return chosen


def seed_of(history: Sequence[int]) -> int:
    """The history model's hidden state of a history."""
    return zlib.crc32(repr(list(history)).encode())


def logits_of(seed: int, vocab_size: int) -> np.ndarray:
    """The history model's logits of a hidden state."""
    return np.random.default_rng(int(seed)).standard_normal(vocab_size, dtype=np.float32)


class OracleDrafter(Drafter):
    """Proposes the model's own tokens, so every draft is accepted."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        tokens = list(request.token_ids)
        for _ in range(max_tokens):
            tokens.append(next_token(tokens))
        return tokens[request.num_tokens :]


class AdversarialDrafter(OracleDrafter):
    """Proposes right tokens, then wrong ones, and more than it may."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        right = super().propose(request, max_tokens)
        wrong_from = request.num_tokens % (max_tokens + 1)
        return right[:wrong_from] + [(t + 1) % VOCAB_SIZE for t in right[wrong_from:]] + [1, 2, 3]


class RandomDrafter(OracleDrafter):
    """Proposes drafts of random length, each token right with probability 1/2."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        count = self._random.randint(0, max_tokens)
        return [
            token if self._random.random() < 0.5 else self._random.randrange(VOCAB_SIZE)
            for token in super().propose(request, count)
        ]


def make_request(name: str, prompt: Sequence[int], max_tokens: int = 20, adapter: str | None = None) -> Request:
    """A request as the engine would make it."""
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(GenerationRequest(name, tuple(prompt), sampling, adapter=adapter), seed=0)


def make_prompt(length: int, salt: int = 0) -> list[int]:
    """A prompt without end tokens; prompts with equal salts begin with the same tokens."""
    return [1 + zlib.crc32(f"{salt}-{i}".encode()) % (VOCAB_SIZE - 1) for i in range(length)]


class Harness:
    """Block manager, scheduler and fake runner; collects the output of every request."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        prefix_caching: bool = True,
        drafter: Drafter | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 10_000,
        max_draft_tokens: int = 8,
    ) -> None:
        self.blocks = BlockManager(num_blocks=num_blocks, block_size=block_size, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(
            block_manager=self.blocks,
            drafter=drafter or Drafter(),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_share=max(1, max_num_batched_tokens // 4),
            max_model_len=max_model_len,
            max_draft_tokens=max_draft_tokens,
            eos_token_ids=frozenset({EOS}),
        )
        self.runner = FakeRunner(block_size)
        self.max_model_len = max_model_len
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 20, adapter: str | None = None) -> Request:
        request = make_request(name, prompt, max_tokens, adapter)
        self.outputs[name] = []
        self.scheduler.add(request)
        return request

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        assert not set(output.preempted) & {item.request for item in output.scheduled}
        sampled = self.runner.execute(output).sampled_token_ids
        for update in self.scheduler.update_from_output(output, sampled):
            self.take(update)
        self.check()
        return output

    def take(self, update: RequestUpdate) -> None:
        """Note the tokens and the end of a request."""
        name = update.request.request_id
        assert name not in self.reasons, "a token after the end"
        self.outputs[name] += update.token_ids
        if update.finish_reason is not None:
            self.reasons[name] = update.finish_reason

    def check(self) -> None:
        check_integrity(self.blocks, self.scheduler.requests)

    def run(self, max_steps: int = 5_000) -> int:
        steps = 0
        while self.scheduler.num_running or self.scheduler.num_waiting:
            assert self.step().scheduled, "an empty step with requests alive: a deadlock"
            steps += 1
            assert steps <= max_steps, "no progress"
        assert self.blocks.num_free_blocks == self.blocks.num_blocks
        return steps
