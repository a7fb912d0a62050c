"""What is trained on and asked: corrections split, old examples replayed, nothing of a held-out input learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.improve.data import EXAMPLES, HELD_OUT, LEARNED, OLD, Data, kept_data, write_data
from pipeline.improve.lines import Correction, as_lines
from pipeline.train.kept import Kept
from pipeline.weights.errors import CheckpointError
from tests.tiny_tokenizers import byte_level, save

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SYLLABLES = ("ka", "lo", "mi", "re", "su", "to")
NAMES = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES]


def line(name: str, city: str | None = None) -> dict[str, Any]:
    return {"input": f"Where is {name}?", "output": {"city": name if city is None else city}}


def correction(name: str, city: object, **more: Any) -> Correction:
    return Correction({"text": f"Where is {name}?", **more}, json.dumps({"city": city}))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "towns"
    folder.mkdir()
    save(byte_level(), folder)
    task = {"task": "schema", "name": "towns", "schema": SCHEMA, "template": "{text}\n", "inputs": ["text"]}
    (folder / "task.json").write_text(json.dumps(task))
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    folder = tmp_path / "data"
    folder.mkdir()
    for part, names in {"train": NAMES[:150], "validation": NAMES[150:160], "test": NAMES[160:170]}.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line(name)) + "\n" for name in names))
    return Kept("base", tmp_path / "adapter", None, folder)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def asked(found: list[dict[str, Any]]) -> list[str]:
    return [one["input"] if isinstance(one["input"], str) else one["input"]["text"] for one in found]


def write(work: Path, weights: Path, kept: Kept, corrections: list[Correction]) -> tuple[Data, list[str]]:
    said = list[str]()
    return write_data(work, weights, kept, corrections, None, said.append), said


def test_groups_of_a_honeycomb_correction_are_learned_with_an_order(weights: Path) -> None:
    """All training data has one, and people leave it out; without it the model would forget to order."""
    task = {"task": "honeycomb", "name": "tiny", "prompt": "columns-first", "surface": "json"}
    (weights / "task.json").write_text(json.dumps(task))
    query = {"breakdowns": ["route"], "calculations": [{"op": "COUNT"}]}
    inputs = {"nlq": "errors by route", "cols": '["route", "error"]'}
    (found,) = as_lines([Correction(inputs, json.dumps(query))], weights, print)
    order = {"op": "COUNT", "order": "descending"}
    assert json.loads(json.loads(found.text)["output"]) == {**query, "orders": [order]}


def test_a_correction_of_another_task_is_left_out_by_what_it_lacks(weights: Path) -> None:
    task = {"task": "honeycomb", "name": "tiny", "prompt": "columns-first", "surface": "json"}
    (weights / "task.json").write_text(json.dumps(task))
    said = list[str]()
    assert not as_lines([Correction({"text": "We met Ada"}, '{"name": "Ada"}')], weights, said.append)
    assert "the input has no 'nlq'" in said[0]


def test_corrections_are_learned_or_held_out_and_old_examples_replayed(
    tmp_path: Path, weights: Path, kept: Kept
) -> None:
    given = [correction(name, "Bath", temperature=0.7, seed=1) for name in NAMES[140:152]]
    given += [Correction({"text": "Where is York?"}, '{"city": "York"}', is_example=True)]
    data, said = write(tmp_path / "work", weights, kept, given)
    train, questions = read(data.folder / "train.jsonl"), read(data.questions)
    held_out = asked([questions[n - 1] for n in data.sets[HELD_OUT]])
    learned = asked(read(data.folder / LEARNED))
    assert sorted(held_out + learned) == sorted(f"Where is {name}?" for name in NAMES[140:152])
    assert 2 <= len(held_out) <= 3 and data.learned == len(learned)
    assert all(asked(train).count(one) == 4 for one in learned)
    assert not set(held_out) & set(asked(train))
    assert 10 * len(learned) <= data.replayed == len(train) - 4 * len(learned)
    assert all(one["output"] == '{"city": "Bath"}' for one in train if isinstance(one["input"], dict))
    assert {"input": {"text": held_out[0]}, "output": '{"city": "Bath"}'} in questions  # without the caller's settings
    old = asked([questions[n - 1] for n in data.sets[OLD]])
    assert sorted(old) == sorted(f"Where is {name}?" for name in NAMES[152:170])
    assert asked([questions[n - 1] for n in data.sets[EXAMPLES]]) == ["Where is York?"]
    assert any("That is few" in one for one in said)


def test_neighbours_that_begin_alike_are_replayed_together(tmp_path: Path, weights: Path, kept: Kept) -> None:
    """Training computes a common beginning once; so many old examples come for little more time than one, and where
    corrections are in such runs, old ones are too."""
    lists = [f"{name * 12}: " for name in NAMES[:200]]
    inputs = [f"{columns}{number}" for columns in lists for number in range(5)]
    lines = [{"input": text, "output": {"city": "Ely"}} for text in inputs]
    assert kept.data is not None
    (kept.data / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for each in (1, 6):
        asked_of = [f"{name * 12}! {number}" for name in NAMES[200:212] for number in range(each)]
        given = [Correction({"text": text}, '{"city": "Bath"}') for text in asked_of]
        data, _ = write(tmp_path / f"{each}", weights, kept, given)
        replayed = [one["input"] for one in read(data.folder / "train.jsonl") if isinstance(one["input"], str)]
        lists_of_them = {text.rpartition(" ")[0] for text in replayed}
        assert data.in_runs == (each > 1) and len(replayed) == data.replayed
        if data.in_runs:
            assert len(replayed) == 5 * len(lists_of_them) == 5 * 10 * data.learned // each
        else:
            assert len(replayed) == 10 * data.learned


def test_wrong_corrections_are_named_and_of_one_input_the_last_counts(
    tmp_path: Path, weights: Path, kept: Kept
) -> None:
    given = [correction(name, "Bath") for name in NAMES[170:190]]
    given += [correction(NAMES[170], "Wells"), correction("a", 7), Correction({"text": "b"}, "Bath")]
    data, said = write(tmp_path / "work", weights, kept, given)
    every = read(data.folder / LEARNED) + [read(data.questions)[n - 1] for n in data.sets[HELD_OUT]]
    outputs = {one["input"]["text"]: one["output"] for one in every}
    assert len(every) == 20 and outputs[f"Where is {NAMES[170]}?"] == '{"city": "Wells"}'
    assert any("not JSON" in one for one in said) and any("is not of type" in one for one in said)


def test_few_corrections_and_nothing_to_replay_are_refused(tmp_path: Path, weights: Path, kept: Kept) -> None:
    given = [correction(name, "Bath") for name in NAMES[170:190]]
    with pytest.raises(CheckpointError, match=r"9 accepted corrections can be used .* 10 are needed"):
        write(tmp_path / "work", weights, kept, given[:9])
    with pytest.raises(CheckpointError, match="--replay"):
        write(tmp_path / "work", weights, Kept("base", tmp_path, None, None), given)


def test_the_next_version_learns_again_what_this_one_has_learned(tmp_path: Path, weights: Path, kept: Kept) -> None:
    first = [correction(name, "Bath") for name in NAMES[170:190]]
    data, _ = write(tmp_path / "one", weights, kept, first)
    after = Kept("base", tmp_path / "adapter", None, kept_data(data, kept, tmp_path / "kept"))
    second = [correction(name, "Wells") for name in NAMES[190:204]]
    again, _ = write(tmp_path / "two", weights, after, second)
    learned, learned_before = (set(asked(read(one.folder / LEARNED))) for one in (again, data))
    assert learned_before < learned
    with pytest.raises(CheckpointError, match="that no version has learned"):
        write(tmp_path / "three", weights, after, first)


def test_a_replay_file_takes_the_place_of_the_training_data(tmp_path: Path, weights: Path, kept: Kept) -> None:
    replay = tmp_path / "replay.jsonl"
    replay.write_text("".join(json.dumps(line(name, "Ely")) + "\n" for name in NAMES[:80]))
    given = [correction(name, "Bath") for name in NAMES[170:190]]
    data = write_data(tmp_path / "work", weights, Kept("base", tmp_path, None, None), given, replay, lambda _: None)
    assert data.replayed == 60 and len(data.sets[OLD]) == 20
    questions = asked(read(data.questions))
    assert not {questions[n - 1] for n in data.sets[OLD]} & set(asked(read(data.folder / "train.jsonl")))
