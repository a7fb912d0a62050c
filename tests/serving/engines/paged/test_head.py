"""Only the needed logits are computed, and this changes no token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engines.paged.head import MAX_ALLOWED, Head, RowLogits
from serving.engines.paged.sampler import Sampler
from serving.errors import GrammarError
from serving.kernels.base import MaskedProducts
from serving.kernels.reference import ReferenceKernels
from serving.types import SamplingParams
from tests.serving.engines.paged.sampler_items import END, WordGrammar, make_item

VOCAB = 3 * MAX_ALLOWED + 5  # not a multiple of 32
WEIGHT = torch.randn(VOCAB, 16, generator=torch.manual_seed(0)).round(decimals=1)  # with ties
GREEDY = SamplingParams()


class Model:
    """A head that records its calls. Its screen clears what is clearly below the largest logit."""

    def __init__(self, *, has_screen: bool = False) -> None:
        self.screen = self if has_screen else None
        self.screened: list[int] = []  # rows
        self.whole = 0  # rows
        self.some: list[tuple[int, int]] = []  # row, token

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.whole += len(hidden)
        return (hidden[:, None, :] * WEIGHT).sum(2)  # a separate sum for each row, so that no row depends on the batch

    def narrow(self, hidden: torch.Tensor, rows: torch.Tensor, bitmasks: torch.Tensor) -> torch.Tensor:
        self.screened += rows.tolist()
        allowed = torch.from_numpy(np.unpackbits(bitmasks.numpy().view(np.uint8), axis=1, bitorder="little")[:, :VOCAB])
        logits = (hidden[rows][:, None, :] * WEIGHT).sum(2).where(allowed.bool(), -torch.inf)
        largest = logits.max(1, keepdim=True).values
        left = logits > largest - 0.3
        bits = np.packbits(np.pad(left.numpy(), [(0, 0), (0, -VOCAB % 32)]), axis=1, bitorder="little")
        bitmasks.copy_(torch.from_numpy(bits.view(np.int32)))
        return torch.cat([largest, torch.logsumexp(logits.masked_fill(left, -torch.inf), 1, keepdim=True)], 1)

    def compute_allowed_logits(
        self, hidden: torch.Tensor, rows: torch.Tensor, bitmasks: torch.Tensor, most: int
    ) -> MaskedProducts:
        chosen = MaskedProducts.empty(len(rows), most)
        ReferenceKernels().masked_products(hidden, WEIGHT, rows, bitmasks, chosen)
        for i, (row, count) in enumerate(zip(rows.tolist(), chosen.counts.tolist(), strict=True)):
            if count > 1:
                columns = chosen.columns[i, :count]
                self.some += [(row, token) for token in columns.tolist()]
                chosen.products[i, :count] = (hidden[row] * WEIGHT[columns]).sum(1)  # as above
        return chosen


def every_row(hidden: torch.Tensor) -> np.ndarray:
    return np.arange(len(hidden), dtype=np.int32)


def choose(model: Model, hidden: torch.Tensor, *items) -> list[list[int]]:
    rows = Head(model, vocab_size=VOCAB).logits(hidden, every_row(hidden), items)
    output = Sampler(vocab_size=VOCAB).sample(rows, items)
    assert not output.failures
    return output.sampled_token_ids


some_tokens = st.one_of(
    st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    st.integers(1, VOCAB).map(lambda n: set(range(VOCAB - n, VOCAB))),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(some_tokens, min_size=5, max_size=5), st.data())
def test_tokens_are_those_of_all_logits(allowed: list[set[int]], data: st.DataObject) -> None:
    measures = data.draw(st.booleans())
    temperature = data.draw(st.sampled_from([0.0, 0.0, 1.0]))
    least, most = data.draw(st.sampled_from([0, 0, 2, 4])), data.draw(st.sampled_from([1.0, 1.0, 1.3]))
    sampling = SamplingParams(
        temperature=temperature, top_p=0.9, choice_logprobs=measures, min_tokens=least, repetition_penalty=most
    )
    seed = data.draw(st.integers(0, 1000))
    hidden = torch.randn(5, 16, generator=torch.manual_seed(seed))
    everything = [RowLogits(row) for row in Model().compute_logits(hidden).numpy()]
    count = data.draw(st.integers(0, 4))
    # The tokens of plain decoding, changed in places.
    plain = make_item(sampling, [], WordGrammar(allowed), seed)
    drafts: list[int] = []
    for i in range(count):
        plain.request.token_ids, plain.num_tokens = [1, 2, 3, *drafts], 3 + len(drafts)
        [[token]] = Sampler(vocab_size=VOCAB).sample(everything[i : i + 1], [plain]).sampled_token_ids
        drafts.append(token)
    if drafts and data.draw(st.booleans()):
        drafts[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(0, VOCAB - 1))
    expected_item, item = (make_item(sampling, drafts, WordGrammar(allowed), seed) for _ in range(2))
    expected = Sampler(vocab_size=VOCAB).sample(everything[: count + 1], [expected_item])
    model = Model(has_screen=data.draw(st.booleans()))
    rows = Head(model, vocab_size=VOCAB).logits(hidden[: count + 1], every_row(hidden[: count + 1]), [item])
    output = Sampler(vocab_size=VOCAB).sample(rows, [item])
    assert output.sampled_token_ids == expected.sampled_token_ids
    assert item.request.grammar.consumed == expected.sampled_token_ids[0]
    assert output.choice_logprobs.keys() == expected.choice_logprobs.keys()
    for request_id, logprobs in expected.choice_logprobs.items():
        np.testing.assert_allclose(output.choice_logprobs[request_id], logprobs, atol=1e-5)


def test_where_one_token_is_allowed_nothing_is_computed() -> None:
    model = Model()
    item = make_item(GREEDY, [7, 9], WordGrammar([{7}, {9}, {4}, {1}]))
    assert choose(model, torch.randn(3, 16), item) == [[7, 9, 4]]
    assert (model.whole, model.some) == (0, [])


def test_few_tokens_are_computed_alone_and_many_with_all() -> None:
    model = Model()
    many = set(range(MAX_ALLOWED + 1))
    free = make_item(GREEDY, [])
    item = make_item(GREEDY, [3, 5], WordGrammar([{3, 4}, many, {4, 8, 9}, {1}]))
    choose(model, torch.randn(4, 16), free, item)
    assert model.whole == 2, "the row without a grammar, and the one with many"
    assert model.some == [(1, 3), (1, 4), (3, 4), (3, 8), (3, 9)]


def test_a_screen_takes_the_rows_whose_largest_logit_is_chosen_from_many() -> None:
    model = Model(has_screen=True)
    many = set(range(MAX_ALLOWED + 1))
    free, noisy = make_item(GREEDY, []), make_item(SamplingParams(temperature=0.7), [])
    item = make_item(GREEDY, [3], WordGrammar([{3, 4}, many]))
    hidden = torch.randn(4, 16)
    tokens = choose(model, hidden, free, noisy, item)
    assert tokens[0] == [int(Model().compute_logits(hidden)[0].argmax())]
    assert 0 in model.screened
    assert 1 not in model.screened
    assert model.whole == 1, "only the row that is sampled"


def test_a_screened_row_gives_no_end_token_before_the_least_number_of_tokens() -> None:
    hidden = WEIGHT[END[1]][None]  # whose logit is the largest then
    logits = Model().compute_logits(hidden)[0]
    model = Model(has_screen=True)
    assert logits.argmax() in END
    assert choose(model, hidden, make_item(GREEDY, [])) == [[int(logits.argmax())]]
    logits[list(END)] = -torch.inf
    assert choose(model, hidden, make_item(SamplingParams(min_tokens=1), [])) == [[int(logits.argmax())]]
    assert (model.screened, model.whole) == ([0, 0], 0)


class Refusing(WordGrammar):
    """Its mask allows tokens that it then refuses."""

    def __init__(self, allowed: list[set[int]], refused: set[int]) -> None:
        super().__init__(allowed)
        self.refused = refused

    def accept(self, token_ids: list[int]) -> int:
        return 0 if self.refused & set(token_ids) else super().accept(token_ids)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 20))
def test_after_refused_tokens_the_best_of_all_others_is_chosen(seed: int, count: int) -> None:
    hidden = torch.randn(1, 16, generator=torch.manual_seed(seed))
    order = Model().compute_logits(hidden)[0].argsort(descending=True, stable=True).tolist()
    item = make_item(SamplingParams(choice_logprobs=True), [], Refusing([set(range(VOCAB))], set(order[:count])))
    rows = Head(Model(has_screen=True), vocab_size=VOCAB).logits(hidden, every_row(hidden), [item])
    output = Sampler(vocab_size=VOCAB).sample(rows, [item])
    remaining = Model().compute_logits(hidden)[0][order[count:]].double()
    assert output.sampled_token_ids == [[order[count]]]
    expected = (remaining[0] - torch.logsumexp(remaining, 0)).item()
    assert output.choice_logprobs["a"] == [pytest.approx(expected, abs=1e-5)]


def test_rows_after_a_draft_that_the_grammar_refuses_are_not_computed() -> None:
    model = Model()
    item = make_item(GREEDY, [6, 5, 5], WordGrammar([{3, 4}, {5, 6}, {5, 6}, {1}]))
    [tokens] = choose(model, torch.randn(4, 16), item)
    assert len(tokens) == 1
    assert (model.whole, model.some) == (0, [(0, 3), (0, 4)])


def test_bitmasks_along_drafts_leave_the_grammar_unchanged() -> None:
    item = make_item(GREEDY, [3, 5], WordGrammar([{3, 4}, {5, 6}, {1}]))
    Head(Model(), vocab_size=VOCAB).logits(torch.randn(3, 16), np.arange(3, dtype=np.int32), [item])
    assert item.request.grammar.consumed == []


class Ambiguous(WordGrammar):
    """Fails at its second token and stays failed."""

    broken = False

    def accept(self, token_ids: list[int]) -> int:
        if self.broken or self.consumed:
            self.broken = True
            raise GrammarError("too ambiguous")
        return super().accept(token_ids)


def test_a_grammar_that_fails_fails_only_its_own_request() -> None:
    bad = make_item(GREEDY, [3, 5], Ambiguous([{3, 4}, {5, 6}, {1}]))
    good = make_item(GREEDY, [], WordGrammar([{8}]))
    good.request.request_id = "b"
    hidden = torch.randn(4, 16)
    rows = Head(Model(), vocab_size=VOCAB).logits(hidden, every_row(hidden), [bad, good])
    output = Sampler(vocab_size=VOCAB).sample(rows, [bad, good])
    assert output.sampled_token_ids == [[], [8]]
    assert output.failures["a"].args == ("too ambiguous",)


def test_log_probabilities_are_of_the_whole_vocabulary_also_under_a_grammar() -> None:
    hidden = torch.randn(3, 16, generator=torch.manual_seed(4))
    allowed = [{3, 4}, {5, 6}, {1}]
    items = [make_item(SamplingParams(logprobs=count), [3, 5], WordGrammar(allowed)) for count in (None, 2)]
    model = Model()
    tokens = [choose(model, hidden, item) for item in items]
    assert tokens[0] == tokens[1]
    assert model.whole == 3
    rows = Head(model, vocab_size=VOCAB).logits(hidden, every_row(hidden), [items[1]])
    np.testing.assert_array_equal([row.logits for row in rows], Model().compute_logits(hidden).numpy())


def test_only_the_requested_rows_are_computed() -> None:
    hidden = torch.randn(6, 16, generator=torch.manual_seed(3))
    items = [make_item(GREEDY, [], WordGrammar([set(range(50))])), make_item(GREEDY, [])]
    rows = Head(Model(), vocab_size=VOCAB).logits(hidden, np.array([4, 1], np.int32), items)
    expected = Model().compute_logits(hidden).numpy()
    np.testing.assert_array_equal(rows[0].logits, expected[4, :50])
    np.testing.assert_array_equal(rows[1].logits, expected[1])


def test_the_highest_bit_of_a_bitmask_word_is_read() -> None:
    """Bit 31 makes a word negative."""
    every_word_end = set(range(31, VOCAB, 32))
    item = make_item(GREEDY, [], WordGrammar([every_word_end]))
    hidden = torch.randn(1, 16)
    [row] = Head(Model(), vocab_size=VOCAB).logits(hidden, every_row(hidden), [item])
    np.testing.assert_array_equal(row.token_ids, sorted(every_word_end))
