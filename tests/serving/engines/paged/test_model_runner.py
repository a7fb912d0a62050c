"""The tensors of a step: each token's position, slot and rows of logits."""

import numpy as np
import pytest

from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.step import ScheduledRequest, SchedulerOutput
from serving.engines.paged.step_batch import build_batch
from tests.serving.engines.paged.paged_fakes import (
    HistoryModel,
    logits_of,
    make_prompt,
    make_request,
    seed_of,
)

VOCAB = 40


def make_item(prompt: list[int], blocks: list[int], start: int, num_tokens: int, drafts=()) -> ScheduledRequest:
    request = make_request("a", prompt)
    request.block_ids = blocks
    return ScheduledRequest(request, start, num_tokens, list(drafts))


def test_a_ragged_batch_by_hand():
    items = [
        make_item([10, 11, 12, 13, 14, 15], [7, 2], start=1, num_tokens=4),  # a chunk without a row to sample
        make_item([20, 21, 22], [5], start=2, num_tokens=1),  # decoding
        make_item([30, 31, 32, 33], [1, 3], start=3, num_tokens=1, drafts=[34, 35]),
    ]
    batch = build_batch(items, block_size=4)
    assert batch.input_ids.tolist() == [11, 12, 13, 14, 22, 33, 34, 35]
    assert batch.positions.tolist() == [1, 2, 3, 4, 2, 3, 4, 5]
    assert batch.query_start.tolist() == [0, 4, 5, 8]
    assert batch.context_lens.tolist() == [5, 3, 6]
    assert batch.block_tables.tolist() == [[7, 2], [5, 0], [1, 3]]
    assert batch.slot_mapping.tolist() == [29, 30, 31, 8, 22, 7, 12, 13]
    assert batch.logit_rows.tolist() == [4, 5, 6, 7]
    assert {array.dtype for array in vars_of(batch)} == {np.dtype(np.int32)}


def vars_of(batch):
    return [getattr(batch, name) for name in batch.__slots__]


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_chunks_give_the_logits_of_the_whole_history(chunk):
    runner = ModelRunner(HistoryModel(VOCAB), num_blocks=9, block_size=4)
    prompt = make_prompt(10)
    for start in range(0, 10, chunk):
        item = make_item(prompt, [4, 0, 8], start, min(chunk, 10 - start))
        output = runner.execute(SchedulerOutput([item]))
        if item.end < 10:
            assert output.sampled_token_ids == [[]]
    assert output.sampled_token_ids == [[int(logits_of(seed_of(prompt), VOCAB).argmax())]]


def test_drafts_are_verified_against_the_history_that_they_extend():
    runner = ModelRunner(HistoryModel(VOCAB), num_blocks=9, block_size=4)
    tokens = make_prompt(6)
    for _ in range(4):
        tokens.append(int(logits_of(seed_of(tokens), VOCAB).argmax()))
    right, wrong = tokens[6:9], [tokens[6], (tokens[7] + 1) % VOCAB, tokens[8]]
    for drafts, expected in ((right, tokens[6:10]), (wrong, tokens[6:8])):
        item = make_item(tokens[:6], [4, 0, 8], 0, 6, drafts)
        assert runner.execute(SchedulerOutput([item])).sampled_token_ids == [expected]
