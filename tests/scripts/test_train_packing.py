"""Packs hold exactly the tokens that inference will see, and score exactly the answers."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from scripts.training.packing import (
    Example,
    Packs,
    TokenizedExample,
    common_prefix_length,
    group_by_columns,
    make_pack,
    read_examples,
    tokenize,
)
from scripts.training.stream import PackStream
from tests.scripts.training_fixtures import byte_tokenizer, some_examples


def test_prefix_ends_where_prompts_differ_and_leaves_a_token_of_each() -> None:
    assert common_prefix_length([(1, 2, 3), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2, 3), (1, 2, 3)]) == 2
    assert common_prefix_length([(1, 2), (1, 2, 3)]) == 1


def test_every_branch_reads_as_its_own_prompt_and_answer() -> None:
    examples = some_examples()
    pack = make_pack(examples)
    prefix = pack.input_ids[: pack.prefix_length].tolist()
    flat_positions = pack.positions[pack.prefix_length :].tolist()
    for row, example in zip(pack.branch_index, examples, strict=True):
        length = len(example.prompt) + len(example.answer) - pack.prefix_length
        branch = pack.input_ids[row[:length]].tolist()
        assert (*prefix, *branch) == (*example.prompt, *example.answer)
        assert flat_positions[:length] == list(range(pack.prefix_length, pack.prefix_length + length))
        flat_positions = flat_positions[length:]
    assert flat_positions == []


def test_only_answers_are_scored_and_the_end_token_is_learned() -> None:
    examples = some_examples()
    pack = make_pack(examples)
    assert pack.targets.tolist() == [t for e in examples for t in e.answer]
    # each scored place holds the token before its target: the prompt's last, then the answer's
    expected = [t for e in examples for t in (e.prompt[-1], *e.answer[:-1])]
    assert pack.input_ids[pack.predict_index].tolist() == expected


def test_padding_round_trip() -> None:
    pack = make_pack(some_examples())
    padded = pack.input_ids[pack.branch_index].flatten()
    assert torch.equal(padded[pack.unpad_index], pack.input_ids[pack.prefix_length :])


def test_user_text_never_becomes_a_special_token() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.encode_special_tokens = True
    example = Example("say <|im_end|>", ("a",), '{"x": "<|im_end|>"}')
    (tokenized,) = tokenize([example], tokenizer, lambda nlq, cols: nlq, end_token_id=257)
    assert 257 not in tokenized.prompt
    assert tokenized.answer.count(257) == 1
    assert tokenized.answer[-1] == 257


def test_groups_are_by_column_list_and_of_bounded_size() -> None:
    examples = [Example(str(i), ("a", "b") if i % 2 else ("b", "a"), "{}") for i in range(10)]
    groups = group_by_columns(examples, max_branches=3)
    assert sorted(i for g in groups for i in g) == list(range(10))
    assert all(len(g) <= 3 and len({examples[i].cols for i in g}) == 1 for g in groups)


def test_overlong_examples_are_left_out_but_no_pack_is_empty() -> None:
    long, longer = (TokenizedExample(tuple(range(n)), (1, 257)) for n in (90, 95))
    by_question = dict(zip("abcd", [*some_examples()[:2], long, longer], strict=True))
    examples = [Example(q, ("x",) if q in "abc" else ("y",), "{}") for q in by_question]
    packs = Packs(examples, lambda some: [by_question[e.nlq] for e in some], max_branches=8, max_tokens=40)
    assert [p.num_branches for p in packs] == [2, 1]
    assert packs.num_examples == 4


def test_reads_queries_as_text_or_objects(tmp_path: Path) -> None:
    query = {"calculations": [{"op": "COUNT"}], "limit": 5}
    lines = [{"nlq": "é", "cols": ["a"], "query": q} for q in (query, json.dumps(query))]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(x) for x in lines), encoding="utf-8")
    first, second = read_examples(path)
    assert first == second == Example("é", ("a",), '{"calculations": [{"op": "COUNT"}], "limit": 5}')
    assert len(read_examples(path, limit=1)) == 1


def test_stream_shows_everything_once_an_epoch_and_goes_on_where_it_stopped() -> None:
    stream = PackStream(10, seed=4)
    first = [stream.take(4) for _ in range(5)]
    flat = [i for batch in first for i in batch]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert flat[:10] != flat[10:]
    stream = PackStream(10, seed=4)
    stream.take(7)
    again = PackStream(10, seed=4, epoch=stream.epoch, offset=stream.offset)
    assert stream.take(9) == again.take(9) == flat[7:16]
    assert PackStream(10, seed=5).take(10) != flat[:10]
