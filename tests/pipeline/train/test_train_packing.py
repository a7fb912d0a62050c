"""Packs have exactly the tokens of inference, and only answers have a loss."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from pipeline.train.pack_attention import PackLayout, pack_attention
from pipeline.train.packing import (
    Packs,
    PackStream,
    TokenizedExample,
    common_prefix_length,
    group_by_prefix,
    make_pack,
    tokenize_cases,
)
from tasks.honeycomb.evaluation.queries import written_answers
from tests.pipeline.train.training_fixtures import some_examples, write_base


def test_the_shared_prefix_ends_where_prompts_differ_and_leaves_a_token_of_each() -> None:
    assert common_prefix_length([(1, 2, 3), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2, 3), (1, 2, 3)]) == 2
    assert common_prefix_length([(1, 2), (1, 2, 3)]) == 1


def test_every_token_sees_its_own_prompt_and_answer_only() -> None:
    examples = some_examples()
    pack = make_pack(examples)
    layout = PackLayout.of(pack.branches)
    for number, example in enumerate(examples):
        whole = [*example.prompt, *example.answer]
        own = (pack.branches == number).nonzero().flatten()
        prefix = torch.arange(layout.prefix)
        for step, place in enumerate(range(len(whole) - len(own), len(whole))):
            seen = torch.cat([prefix, layout.tokens[number, : step + 1]])
            assert pack.input_ids[seen].tolist() == whole[: place + 1]
            assert pack.positions[seen].tolist() == list(range(place + 1))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_over_a_pack_equals_that_over_each_example(kv_heads: int) -> None:
    torch.manual_seed(kv_heads)
    examples = [TokenizedExample((1, 2, 3, *range(4, 4 + n)), tuple(range(20, 21 + 3 * n))) for n in (1, 5, 2)]
    pack = make_pack(examples)
    size = len(pack.input_ids)
    query = torch.randn(1, 4, size, 8, requires_grad=True)
    key, value = (torch.randn(1, kv_heads, size, 8, requires_grad=True) for _ in range(2))
    layout = PackLayout.of(pack.branches)
    out, _ = pack_attention(torch.nn.Module(), query, key, value, None, 0.3, layout)
    grads = torch.autograd.grad(out.square().sum(), (query, key, value))

    rows = [torch.arange(layout.prefix)]  # each token once: the prefix by itself, then each branch after it
    results = [_causal(query, key, value, rows[0])]
    for number in range(len(examples)):
        own = (pack.branches == number).nonzero().flatten()
        rows.append(own)
        results.append(_causal(query, key, value, torch.cat([rows[0], own]))[layout.prefix :])
    expected = torch.cat(results)
    torch.testing.assert_close(out[0], expected)
    torch.testing.assert_close(grads, torch.autograd.grad(expected.square().sum(), (query, key, value)))


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[N, heads, D]: plain causal attention of some rows to one another."""
    q, k, v = (t[0][:, rows] for t in (query, key, value))
    k, v = (t.repeat_interleave(len(q) // len(t), dim=0) for t in (k, v))
    scores = (q @ k.mT * 0.3).masked_fill(~torch.ones(len(rows), len(rows), dtype=torch.bool).tril(), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def test_only_answers_and_their_end_token_have_a_loss() -> None:
    examples = some_examples()
    pack = make_pack(examples)
    assert pack.targets.tolist() == [t for e in examples for t in e.answer]
    # each position with a loss has the token before its target: the prompt's last, then the answer's
    expected = [t for e in examples for t in (e.prompt[-1], *e.answer[:-1])]
    assert pack.input_ids[pack.predict_index].tolist() == expected


def test_user_text_never_becomes_a_special_token(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"nlq": "say <|im_end|>", "cols": ["a"], "query": {"limit": 1}}))
    (example,) = tokenize_cases(path, base, None, None)
    assert 257 not in example.prompt
    assert example.answer.count(257) == 1
    assert example.answer[-1] == 257


def test_groups_share_a_prefix_and_have_a_limited_size() -> None:
    lists = [tuple(range(start, start + 20)) for start in (0, 30)]
    examples = [TokenizedExample((*lists[i % 2], 90 + i), (1,)) for i in range(10)]
    groups = group_by_prefix(examples, max_branches=3, max_tokens=99)
    assert sorted(i for g in groups for i in g) == list(range(10))
    assert sorted(map(len, groups)) == [2, 2, 3, 3]
    assert all(len({examples[i].prompt[:20] for i in g}) == 1 for g in groups)


@pytest.mark.parametrize(("length", "num_groups"), [(20, 1), (70, 2)])
def test_long_examples_that_share_only_a_few_words_are_not_packed(length: int, num_groups: int) -> None:
    examples = [TokenizedExample((1, 2, 3, *range(n, n + length)), (1,)) for n in (10, 500)]
    assert len(group_by_prefix(examples, max_branches=8, max_tokens=999)) == num_groups


def test_a_pack_has_no_more_tokens_than_the_limit_of_an_example() -> None:
    """Of these five, each with 22 tokens, 20 are shared: three make a pack of 26."""
    packs = Packs([TokenizedExample((*range(20), 90 + i), (1,)) for i in range(5)], max_branches=8, max_tokens=27)
    assert sorted(len(pack.input_ids) for pack in packs) == [24, 26]


def test_copies_of_an_example_are_in_different_packs() -> None:
    examples = [TokenizedExample((*range(20), 90 + i % 2), (1,)) for i in range(8)]
    groups = group_by_prefix(examples, max_branches=8, max_tokens=999)
    assert sorted(i for g in groups for i in g) == list(range(8))
    assert [len({examples[i] for i in g}) for g in groups] == [2, 2, 2, 2]


def test_overlong_examples_are_left_out_and_counted() -> None:
    long = TokenizedExample(tuple(range(90)), (1, 257))
    packs = Packs([*some_examples(), long], max_branches=8, max_tokens=40)
    assert sum(p.num_branches for p in packs) == packs.num_examples == 3
    assert packs.left_out == 1


def test_reads_queries_as_text_or_objects(tmp_path: Path) -> None:
    query = {"calculations": [{"op": "COUNT"}], "limit": 5}
    lines = [{"nlq": "é", "cols": ["a"], "query": q} for q in (query, json.dumps(query))]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(x) for x in lines), encoding="utf-8")
    first, second = written_answers(path)
    assert first == second == ({"nlq": "é", "cols": '["a"]'}, '{"calculations": [{"op": "COUNT"}], "limit": 5}')


def test_the_stream_has_every_example_once_an_epoch_and_continues_where_it_stopped() -> None:
    stream = PackStream(range(10), seed=4)
    first = [stream.take(4) for _ in range(5)]
    flat = [i for batch in first for i in batch]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert flat[:10] != flat[10:]
    stream = PackStream(range(10), seed=4)
    stream.take(4)
    again = PackStream(range(10), seed=4, epoch=stream.epoch, offset=stream.offset)
    assert stream.take(4) == again.take(4) == flat[4:8]
    assert [PackStream(range(10), seed=5).take(4) for _ in range(5)] != first


def test_packs_of_a_step_have_similar_lengths_and_steps_come_in_any_order() -> None:
    """Otherwise the threads of a step wait for the one with the longest pack."""
    rng = random.Random(0)
    lengths = [rng.randint(100, 1000) for _ in range(64)]
    stream = PackStream(lengths, seed=1)
    steps = [stream.take(2) for _ in range(32)]
    assert sorted(index for step in steps for index in step) == list(range(64))
    differences = [abs(lengths[a] - lengths[b]) for a, b in steps]
    assert sum(differences) / len(differences) < 60
    longest = [max(lengths[index] for index in step) for step in steps[:16]]
    assert longest != sorted(longest)
