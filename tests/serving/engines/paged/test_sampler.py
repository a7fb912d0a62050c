"""The tokens are those of plain decoding for any drafts; samples follow the target distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engines.paged.head import RowLogits
from serving.engines.paged.logits_processor import token_logprob
from serving.engines.paged.sampler import Sampler, draw
from serving.errors import GrammarError, WeightsError
from serving.types import SamplingParams
from tests.serving.engines.paged.sampler_items import (
    VOCAB,
    WordGrammar,
    chi_square,
    distribution,
    favouring,
    make_item,
    rows_of,
    sample,
)

GREEDY = SamplingParams()


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ([], [7]),
        ([7, 8, 9], [7, 8, 9, 10]),  # all accepted, and the bonus token
        ([7, 0, 9], [7, 8]),  # one accepted, one recovered, the others discarded
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


def test_the_grammar_is_obeyed_and_consumes_exactly_the_chosen_tokens():
    grammar = WordGrammar([{7}, {3, 69}, {9}, {1}])
    logits = favouring(7, 8, 9, 10)
    logits[1, 69] = 4.0
    assert sample(logits, make_item(GREEDY, [7, 69, 2], grammar)) == [[7, 69, 9]]
    assert grammar.consumed == [7, 69, 9]


def test_nothing_follows_a_complete_grammar():
    grammar = WordGrammar([{7}, {8}])
    assert sample(favouring(7, 8, 9), make_item(GREEDY, [7, 8], grammar)) == [[7, 8]]


def test_a_dead_end_fails_only_its_own_request():
    bad, good = make_item(GREEDY, [], WordGrammar([set()])), make_item(GREEDY, [])
    good.request.request_id = "b"
    output = Sampler(vocab_size=VOCAB).sample(rows_of(favouring(1, 2)), [bad, good])
    assert output.sampled_token_ids == [[], [2]]
    assert isinstance(output.failures["a"], GrammarError)


PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 1.5, "frequency_penalty": 0.4, "min_tokens": 3}


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5), st.data())
def test_any_draft_gives_a_prefix_of_the_plain_tokens(best, data):
    allowed = data.draw(st.lists(st.sets(st.integers(0, VOCAB - 1), min_size=1), min_size=5, max_size=5))
    temperature = data.draw(st.sampled_from([0.0, 0.7]))
    penalties = data.draw(st.sampled_from([{}, PENALTIES]))
    sampling = SamplingParams(temperature=temperature, top_k=4, seed=3, logprobs=2, **penalties)
    torch.manual_seed(1)
    logits = favouring(*best)
    plain: list[int] = []
    for i in range(5):  # plain decoding: row after row, as in separate passes
        item = make_item(sampling, [], WordGrammar([{t} for t in plain] + allowed[i:]))
        item.request.grammar.accept(plain)
        item.request.token_ids += plain
        for token in plain if penalties else []:
            item.request.logits_processor.accept(token)
        item.num_tokens += i
        plain += sample(logits[i : i + 1], item)[0]
    drafts = data.draw(st.one_of(st.just(plain[:4]), st.lists(st.integers(0, VOCAB - 1), max_size=4)))
    item = make_item(sampling, drafts, WordGrammar(allowed))
    rows = rows_of(logits[: len(drafts) + 1])
    output = Sampler(vocab_size=VOCAB).sample(rows, [item])
    [tokens] = output.sampled_token_ids
    assert output.logprobs == {"a": [token_logprob(r.logits, t, 2) for r, t in zip(rows, tokens, strict=False)]}
    assert tokens == plain[: len(tokens)]
    agreed = next((i for i, d in enumerate(drafts) if d != plain[i]), len(drafts))
    assert len(tokens) == agreed + 1
    assert item.request.grammar.consumed == tokens


def test_the_same_seed_gives_the_same_token_in_any_batch():
    sampling = SamplingParams(temperature=1.0, seed=0)
    logits = torch.randn(9, VOCAB)
    alone = [sample(logits[i : i + 1], make_item(sampling, [], seed=i))[0] for i in range(9)]
    together = sample(logits, *(make_item(sampling, [], seed=i) for i in range(9)))
    assert alone == together


def test_seeds_and_positions_give_different_numbers_and_zero_is_a_seed():
    probs = np.full(1000, 1e-3, np.float32)
    drawn = {draw(probs, seed, position) for seed in range(20) for position in range(20)}
    assert len(drawn) > 250  # of 1000 tokens, 400 draws hit about 330
    assert draw(probs, 0, 5) == draw(probs, 0, 5) != draw(probs, 1, 5)
    assert 0 <= draw(probs, 2**63 - 1, 0) < 1000


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
    """Samples at different positions are independent."""
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
    if np.abs(mass - top_p).min() > 1e-6:  # no rounding at the limit of top_p
        keep = order[: int((mass < top_p).sum()) + 1]
        positive = [i for i, p in zip(order, scaled, strict=True) if p > 1e-38]
        assert set(kept) == set(keep) & set(positive)
        assert np.allclose(probs[keep], scaled[: len(keep)] / scaled[: len(keep)].sum(), rtol=1e-5)


def test_a_temperature_near_zero_is_greedy():
    logits = np.array([1.0, 1.5, 0.0], np.float32)
    probs = distribution(logits, SamplingParams(temperature=1e-300))
    assert probs.tolist() == [0.0, 1.0, 0.0]


def test_logits_that_are_not_numbers_fail_their_own_request_only():
    items = [make_item(SamplingParams(temperature=1.0), []), make_item(GREEDY, [])]
    logits = favouring(7, 8)
    logits[0] = float("nan")
    output = Sampler(vocab_size=VOCAB).sample(rows_of(logits), items)
    assert output.sampled_token_ids == [[], [8]]
    assert isinstance(output.failures[items[0].request.request_id], WeightsError)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.booleans())
def test_choice_logprobs_are_of_what_the_grammar_leaves_and_the_same_for_any_drafts(seed, num_right, is_narrow):
    """Whether a row has the whole vocabulary or the allowed tokens only."""
    rng = np.random.default_rng(seed)
    allowed = [set(rng.choice(VOCAB, size, replace=False).tolist()) for size in (5, 1, 40, 2)]
    logits = rng.normal(0, 3, (len(allowed), VOCAB)).astype(np.float32)
    tokens = [max(one, key=lambda token, row=row: row[token]) for one, row in zip(allowed, logits, strict=True)]
    expected = [
        row[token] - np.logaddexp.reduce(row[sorted(one)].astype(float))
        for one, row, token in zip(allowed, logits, tokens, strict=True)
    ]
    rows = [RowLogits(row) for row in logits]
    if is_narrow:
        ids = [np.array(sorted(one), np.int32) for one in allowed]
        rows = [RowLogits(row[each], each) for row, each in zip(logits, ids, strict=True)]
    sampler, found = Sampler(vocab_size=VOCAB), list[float]()
    grammar = WordGrammar(allowed)
    while len(found) < len(tokens):
        drafts = tokens[len(found) : len(found) + num_right][: len(tokens) - len(found) - 1]
        item = make_item(SamplingParams(choice_logprobs=True), drafts, grammar)
        output = sampler.sample(rows[len(found) : len(found) + len(drafts) + 1], [item])
        found += output.choice_logprobs["a"]
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[1] == 0
    assert grammar.consumed == tokens


def test_without_a_grammar_choice_logprobs_are_of_the_whole_vocabulary():
    logits = favouring(7, 8)
    output = Sampler(vocab_size=VOCAB).sample(rows_of(logits), [make_item(SamplingParams(choice_logprobs=True), [7])])
    wanted = [token_logprob(row, token, 0).logprob for row, token in zip(logits.numpy(), (7, 8), strict=True)]
    assert output.choice_logprobs == {"a": wanted}


def test_choice_logprobs_come_only_where_they_are_asked_for():
    assert Sampler(vocab_size=VOCAB).sample(rows_of(favouring(7)), [make_item(GREEDY, [])]).choice_logprobs == {}
