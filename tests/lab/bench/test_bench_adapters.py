"""The benchmark of many adapters, on a tiny base in real processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.bench.adapter_command import adapter_table, bench_adapters
from lab.bench.adapter_measures import (
    AdapterPlan,
    AdapterQuestions,
    copies,
    mixed,
    num_right,
    read_questions,
    write_copies,
)
from lab.bench.peers import PEERS
from lab.bench.protocol import Reply
from lab.bench.questions import QuestionError
from serving.adapters.registry import read_registry
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from tests import tiny_tokenizers
from tests.serving.engines.paged.adapter_folders import write_adapter
from tests.serving.models import tiny_checkpoints

PLAN = AdapterPlan(
    rounds=1, counts=(2,), asked=4, users=3, warm=4, cold=2, long=8, long_parts=2, long_users=2, long_kept=2
)
# An answer is one of two words, so that a random model soon ends.
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, folder = tiny_tokenizers.byte_level(), tmp_path_factory.mktemp("base")
    tiny_checkpoints.save(tiny_checkpoints.tiny_llama(vocab_size=tokenizer.vocab_size), folder)
    tiny_tokenizers.save(tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, weights = tmp_path_factory.mktemp("adapters"), load_with_kernels(base, ReferenceKernels()).weights.decoder
    for seed, name in enumerate(("one", "two")):
        folder = write_adapter(root / name, weights, seed=seed)
        task = {"task": "schema", "name": name, "schema": SCHEMA, "template": f"{name}: {{text}}\n"}
        (folder / "task.json").write_text(json.dumps(task))
        for file in ("questions.jsonl", "held_out.jsonl"):
            lines = [{"input": f"{file} {i}", "output": {"a": "x"}} for i in range(4)]
            (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries = [{"name": name, "source": name, "task": name} for name in ("one", "two")]
    path = root / "adapters.yaml"
    path.write_text(json.dumps({"adapters": entries}))
    return path


@pytest.fixture(scope="module")
def questions(base: Path, adapters: Path) -> list[AdapterQuestions]:
    return read_questions(read_registry(adapters), base)


def test_more_adapters_are_asked_the_same_questions_in_their_own_prompts(questions: list[AdapterQuestions]) -> None:
    few, many = (mixed(questions, copies(questions, count), 8) for count in (2, 4))
    assert copies(questions, 4) == ["one", "two", "one-1", "two-1"]
    assert [ask.prompt for ask in few] == [ask.prompt for ask in many] and len({ask.prompt for ask in few}) == 8
    assert set(Counter(ask.adapter for ask in many).values()) == {2}
    odd = mixed(questions, copies(questions, 3), 6)  # the third is a copy of the first, and has its prompt
    beginnings = {one.entry.name: one.asks[0].prompt[:3] for one in questions}
    assert all(ask.prompt[:3] == beginnings[str(ask.adapter).partition("-")[0]] for ask in odd)


def test_the_list_of_copies_is_one_that_servers_read(questions: list[AdapterQuestions], tmp_path: Path) -> None:
    entries = read_registry(write_copies(questions, 5, tmp_path / "list.yaml"))
    assert list(entries) == copies(questions, 5)
    assert entries["two-1"].source == questions[1].entry.source and entries["two-1"].task == questions[1].entry.task


def test_only_the_same_json_is_right() -> None:
    replies = [Reply("0", 0.1, 0.1, text=text) for text in ('{"a":"x"}', '{"a": "y"}', '{"a": ')]
    assert num_right(replies, [{"a": "x"}] * 3) == 1


def test_an_adapter_without_questions_is_refused(base: Path, questions: list[AdapterQuestions], tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"questions\.jsonl is missing"):
        read_questions({"a": replace(questions[0].entry, source=tmp_path)}, base)


@pytest.mark.slow
def test_everything_is_measured_with_real_engines(base: Path, adapters: Path) -> None:
    result = bench_adapters([PEERS["paged-plain"]], base, adapters, PLAN, lambda message: None)
    json.dumps(result)
    figures = result["engines"]["paged-plain"]
    assert figures["right"].keys() == {"one", "two"} and {of for _, of in figures["right"].values()} == {4}
    assert figures["rounds"][0].keys() == {"one at a time", "2", "merged"}
    assert all(row["answers_per_s"] > 0 for row in figures["rounds"][0].values())
    assert figures["cold"]["first_answer_p95_ms"] >= figures["cold"]["first_token_p95_ms"] > 0
    assert figures["long"]["predictions"] == 8 and len(figures["long"]["rss_mb"]) == 2
    assert "long run, answers/s" in adapter_table(result).columns[0].cells


def test_only_the_named_parts_are_measured(base: Path, adapters: Path) -> None:
    plan = replace(PLAN, parts=("right",))
    result = bench_adapters([PEERS["paged-plain"]], base, adapters, plan, lambda message: None)
    assert result["engines"]["paged-plain"].keys() == {"note", "right"}
    assert result["plan"]["parts"] == ("right",)


def test_a_run_that_is_ended_keeps_the_parts_before(base: Path, adapters: Path) -> None:
    kept: list[str] = []

    def end_at_cold(message: str) -> None:
        if "cold" in message:
            raise KeyboardInterrupt

    def keep(result: Mapping[str, Any]) -> None:
        kept.append(json.dumps(result))

    result = bench_adapters([PEERS["paged-plain"]], base, adapters, PLAN, end_at_cold, keep)
    assert result["interrupted"] and len(kept) == 4  # after the held-out questions and each of three rates
    figures = result["engines"]["paged-plain"]
    assert json.loads(kept[-1])["engines"]["paged-plain"] == figures and figures.keys() == {"note", "right", "rounds"}
    assert "answers/s, 2 adapters" in adapter_table(result).columns[0].cells
