"""Property tests: any sequence of add, step and abort, with any drafter and any memory, keeps all invariants."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.drafting.drafter import Drafter
from serving.engines.paged.request import Request, RequestStatus
from serving.types import FinishReason
from tests.serving.engines.paged.paged_fakes import (
    AdversarialDrafter,
    Harness,
    OracleDrafter,
    RandomDrafter,
    continue_,
    make_prompt,
)

MAX_MODEL_LEN = 60
DRAFTERS = [Drafter, OracleDrafter, AdversarialDrafter, RandomDrafter]


class Lifecycle(RuleBasedStateMachine):
    """Requests are added, computed, preempted and aborted in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness()
        self.requests: dict[str, Request] = {}
        self.max_preemptions = 0

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        spare=st.integers(0, 40),
        budget=st.integers(1, 80),
        max_num_seqs=st.integers(1, 6),
        prefix_caching=st.booleans(),
        drafter=st.sampled_from(DRAFTERS),
        max_draft_tokens=st.integers(0, 16),
    )
    def start(self, block_size, spare, budget, max_num_seqs, prefix_caching, drafter, max_draft_tokens):
        self.harness = Harness(
            num_blocks=-(-MAX_MODEL_LEN // block_size) + spare // block_size,
            block_size=block_size,
            prefix_caching=prefix_caching,
            drafter=drafter(),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            max_draft_tokens=max_draft_tokens,
        )

    @rule(length=st.integers(1, MAX_MODEL_LEN - 1), salt=st.integers(0, 2), max_tokens=st.integers(1, 80))
    def add(self, length, salt, max_tokens):
        name = str(len(self.requests))
        self.requests[name] = self.harness.add(name, make_prompt(length, salt), max_tokens)

    @rule()
    def step(self):
        self.harness.step()

    @rule(count=st.integers(2, 12))
    def steps(self, count):
        for _ in range(count):
            self.harness.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.harness.scheduler.abort(self.requests[data.draw(st.sampled_from(sorted(self.requests)))])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort_while_the_model_runs(self, data):
        output = self.harness.scheduler.schedule()
        sampled = self.harness.runner.execute(output).sampled_token_ids
        self.abort(data)
        for update in self.harness.scheduler.update_from_output(output, sampled):
            self.harness.take(update)

    @invariant()
    def blocks_are_accounted_for(self):
        self.harness.check()

    @invariant()
    def outputs_are_those_of_plain_decoding(self):
        for name, request in self.requests.items():
            self.check_output(name, request)

    def check_output(self, name: str, request: Request) -> None:
        prompt = request.token_ids[: request.num_prompt_tokens]
        tokens, reason = self.harness.outputs[name], self.harness.reasons.get(name)
        expected = continue_(prompt, request.max_tokens, MAX_MODEL_LEN)
        assert tokens == expected[: len(tokens)]
        if reason is None:
            assert request.status is not RequestStatus.FINISHED or request.finish_reason is FinishReason.ABORT
            return
        assert tokens == expected
        full = len(prompt) + len(tokens) == MAX_MODEL_LEN or len(tokens) == request.max_tokens
        assert reason is (FinishReason.LENGTH if full else FinishReason.STOP)

    def teardown(self):
        self.harness.run()
        self.outputs_are_those_of_plain_decoding()
        assert all(request.status is RequestStatus.FINISHED for request in self.requests.values())


Lifecycle.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLifecycle = Lifecycle.TestCase
