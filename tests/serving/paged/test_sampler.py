"""Whatever is drafted, the tokens are those of plain decoding; samples follow the target distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import GrammarError
from serving.paged.head import RowLogits
from serving.paged.request import Request
from serving.paged.sampler import Sampler, draw, target_weights
from serving.paged.scheduler import ScheduledRequest
from serving.types import GenerationRequest, SamplingParams

VOCAB = 70  # not a multiple of 32: the last word of a bitmask is partly unused


class WordGrammar:
    """Accepts one sequence of sets of tokens; counts what it consumed."""

    def __init__(self, allowed: list[set[int]]) -> None:
        self.allowed = allowed
        self.consumed: list[int] = []

    @property
    def is_complete(self) -> bool:
        return len(self.consumed) == len(self.allowed)

    def accept(self, token_ids: list[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.is_complete or token_id not in self.allowed[len(self.consumed)]:
                return count
            self.consumed.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        self.consumed = self.consumed[: len(self.consumed) - num_tokens]

    def forced_tokens(self) -> list[int]:
        return []

    def fill_bitmask(self, bitmask: np.ndarray) -> None:
        bits = np.zeros(bitmask.size * 32, np.uint8)
        bits[list(self.allowed[len(self.consumed)])] = 1
        bitmask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def fill_bitmasks(self, token_ids: list[int], bitmasks: np.ndarray) -> None:
        accepted = 0
        for row in bitmasks:
            self.fill_bitmask(row)
            if accepted == len(token_ids) or not self.accept([token_ids[accepted]]):
                break
            accepted += 1
            if self.is_complete:
                break
        self.rollback(accepted)


def make_item(sampling: SamplingParams, drafts: list[int], grammar=None, seed: int = 0) -> ScheduledRequest:
    request = Request(GenerationRequest("a", (1, 2, 3), sampling), seed=seed, grammar=grammar)
    return ScheduledRequest(request, start=0, num_tokens=3, draft_token_ids=drafts)


def rows_of(logits: torch.Tensor) -> list[RowLogits]:
    return [RowLogits(row) for row in logits.numpy()]


def sample(logits: torch.Tensor, *items: ScheduledRequest) -> list[list[int]]:
    output = Sampler(vocab_size=VOCAB).sample(rows_of(logits), items)
    assert not output.failures
    return output.sampled_token_ids


def distribution(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    weights = target_weights(logits, sampling).astype(float)
    return weights / weights.sum()


def favouring(*token_ids: int) -> torch.Tensor:
    logits = torch.rand(len(token_ids), VOCAB)
    logits[range(len(token_ids)), list(token_ids)] = 5.0
    return logits


GREEDY = SamplingParams()


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ([], [7]),
        ([7, 8, 9], [7, 8, 9, 10]),  # all accepted, and the bonus token
        ([7, 0, 9], [7, 8]),  # one accepted, one recovered, the rest thrown away
        ([0, 8, 9], [7]),
    ],
)
def test_greedy_drafts_are_accepted_up_to_the_first_wrong_one(drafts, expected):
    assert sample(favouring(7, 8, 9, 10)[: len(drafts) + 1], make_item(GREEDY, drafts)) == [expected]


def test_rows_belong_to_the_requests_in_order():
    items = [make_item(GREEDY, [1]), make_item(GREEDY, []), make_item(GREEDY, [4, 4])]
    items[1].num_tokens = 2  # part of a prompt: it has no row
    assert sample(favouring(1, 2, 4, 5, 6), *items) == [[1, 2], [], [4, 5]]


def test_a_step_without_rows_samples_nothing():
    item = make_item(GREEDY, [])
    item.num_tokens = 1
    assert Sampler(vocab_size=VOCAB).sample([], [item]).sampled_token_ids == [[]]


def test_the_grammar_forbids_and_consumes_exactly_what_is_chosen():
    grammar = WordGrammar([{7}, {3, 69}, {9}, {1}])
    logits = favouring(7, 8, 9, 10)
    logits[1, 69] = 4.0
    assert sample(logits, make_item(GREEDY, [7, 69, 2], grammar)) == [[7, 69, 9]]
    assert grammar.consumed == [7, 69, 9]


def test_nothing_follows_a_complete_grammar():
    grammar = WordGrammar([{7}, {8}])
    assert sample(favouring(7, 8, 9), make_item(GREEDY, [7, 8], grammar)) == [[7, 8]]


def test_a_dead_end_fails_its_own_request_only():
    bad, good = make_item(GREEDY, [], WordGrammar([set()])), make_item(GREEDY, [])
    good.request.request_id = "b"
    output = Sampler(vocab_size=VOCAB).sample(rows_of(favouring(1, 2)), [bad, good])
    assert output.sampled_token_ids == [[], [2]]
    assert isinstance(output.failures["a"], GrammarError)


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCAB - 1), min_size=5, max_size=5), st.data())
def test_any_draft_gives_a_prefix_of_the_plain_tokens(best, data):
    allowed = data.draw(st.lists(st.sets(st.integers(0, VOCAB - 1), min_size=1), min_size=5, max_size=5))
    temperature = data.draw(st.sampled_from([0.0, 0.7]))
    sampling = SamplingParams(temperature=temperature, top_k=4, seed=3)
    torch.manual_seed(1)
    logits = favouring(*best)
    plain: list[int] = []
    for i in range(5):  # plain decoding: row after row, as if the model had been asked each time
        item = make_item(sampling, [], WordGrammar([{t} for t in plain] + allowed[i:]))
        item.request.grammar.accept(plain)
        item.request.token_ids += plain
        item.num_tokens += i
        plain += sample(logits[i : i + 1], item)[0]
    drafts = data.draw(st.one_of(st.just(plain[:4]), st.lists(st.integers(0, VOCAB - 1), max_size=4)))
    item = make_item(sampling, drafts, WordGrammar(allowed))
    [tokens] = sample(logits[: len(drafts) + 1], item)
    assert tokens == plain[: len(tokens)]
    agreed = next((i for i, d in enumerate(drafts) if d != plain[i]), len(drafts))
    assert len(tokens) == agreed + 1
    assert item.request.grammar.consumed == tokens


def test_the_same_seed_gives_the_same_token_whatever_else_is_in_the_batch():
    sampling = SamplingParams(temperature=1.0, seed=0)
    logits = torch.randn(9, VOCAB)
    alone = [sample(logits[i : i + 1], make_item(sampling, [], seed=i))[0] for i in range(9)]
    together = sample(logits, *(make_item(sampling, [], seed=i) for i in range(9)))
    assert alone == together


def test_seeds_and_places_give_different_numbers_and_zero_is_a_seed_like_any_other():
    probs = np.full(1000, 1e-3, np.float32)
    drawn = {draw(probs, seed, position) for seed in range(20) for position in range(20)}
    assert len(drawn) > 250  # of 1000 tokens, 400 draws hit about 330
    assert draw(probs, 0, 5) == draw(probs, 0, 5) != draw(probs, 1, 5)
    assert 0 <= draw(probs, 2**63 - 1, 0) < 1000


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())


@pytest.mark.parametrize("draft", [None, 0, 3, 7])
def test_speculation_keeps_the_target_distribution(draft):
    """The first token over many seeds, with a draft that is likely, unlikely, or impossible."""
    sampling = SamplingParams(temperature=0.8, top_k=6, top_p=0.97)
    logits = torch.linspace(2.0, -1.0, 8).repeat(2, 1)
    probs = distribution(logits[0].numpy(), sampling)
    counts, accepted = np.zeros(8), 0
    sampler = Sampler(vocab_size=8)
    for seed in range(8_000):
        item = make_item(sampling, [] if draft is None else [draft], seed=seed)
        [tokens] = sampler.sample(rows_of(logits[: 1 if draft is None else 2]), [item]).sampled_token_ids
        counts[tokens[0]] += 1
        accepted += len(tokens) - 1
    assert counts[probs == 0].sum() == 0
    assert chi_square(counts, probs) < 20.5  # p = 0.001 at 5 degrees of freedom; the seeds are fixed
    if draft is not None:  # a draft is accepted with its own probability
        assert abs(accepted / 8_000 - probs[draft]) < 4 * np.sqrt(0.25 / 8_000)


def test_bonus_and_recovered_tokens_follow_their_own_rows():
    """What is drawn at one place says nothing about the next."""
    sampling = SamplingParams(temperature=1.0)
    logits = torch.zeros(2, 4)
    sampler = Sampler(vocab_size=4)
    counts = np.zeros((4, 4))
    for seed in range(8_000):
        item = make_item(sampling, [seed % 4], seed=seed)
        [tokens] = sampler.sample(rows_of(logits), [item]).sampled_token_ids
        if len(tokens) == 2:
            counts[tokens[0], tokens[1]] += 1
    assert chi_square(counts.ravel(), np.full(16, 1 / 16)) < 37.7  # p = 0.001 at 15


@settings(deadline=None)
@given(
    st.lists(st.integers(-160, 160).map(lambda n: n / 8), min_size=2, max_size=40),  # with ties
    st.floats(0.05, 3),
    st.one_of(st.none(), st.integers(1, 50)),
    st.floats(0.05, 1),
)
def test_the_target_distribution_against_its_definition(values, temperature, top_k, top_p):
    logits = np.array(values, np.float32)
    probs = distribution(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
    order = sorted(range(len(values)), key=lambda i: (-float(logits[i]), i))[:top_k]
    scaled = np.exp((logits[order].astype(float) - logits.max()) / temperature)
    mass = np.cumsum(scaled) / scaled.sum()
    assert abs(probs.sum() - 1) < 1e-9
    kept = np.flatnonzero(probs)
    assert set(kept) <= set(order)
    if np.abs(mass - top_p).min() > 1e-6:  # no rounding at the edge of the nucleus
        keep = order[: int((mass < top_p).sum()) + 1]
        positive = [i for i, p in zip(order, scaled, strict=True) if p > 1e-38]
        assert set(kept) == set(keep) & set(positive)
        assert np.allclose(probs[keep], scaled[: len(keep)] / scaled[: len(keep)].sum(), rtol=1e-5)


def test_a_temperature_near_zero_is_greedy():
    logits = np.array([1.0, 1.5, 0.0], np.float32)
    probs = distribution(logits, SamplingParams(temperature=1e-300))
    assert probs.tolist() == [0.0, 1.0, 0.0]
