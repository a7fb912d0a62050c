"""The example adapters: their data, their held-out questions and their list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import validate

from examples.adapters.datagen.all_tasks import EXAMPLE_ADAPTERS, FOLDER, QUESTIONS, write_examples
from serving.adapters.golden import read_golden
from serving.adapters.registry import read_registry
from serving.weights.adapter_files import TENSORS, adapter_digest


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", EXAMPLE_ADAPTERS)
def test_the_same_data_is_made_each_time_and_is_not_the_held_out(name: str, tmp_path: Path) -> None:
    for folder in ("once", "again"):
        write_examples(name, tmp_path / folder, train=60, validation=8)
    files = {path.name: path.read_bytes() for path in (tmp_path / "once").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    made = [line for file in files for line in lines(tmp_path / "once" / file)]
    held_out = lines(FOLDER / name / "held_out.jsonl")
    assert len(made) == len({str(line["input"]) for line in made}) == 68 + QUESTIONS
    assert not {line["input"] for line in made} & {line["input"] for line in held_out}
    schema = json.loads((FOLDER / name / "task.json").read_text())["schema"]
    for line in (*made, *held_out):
        validate(line["output"], schema)


def test_the_list_has_all_of_them_with_the_digests_of_their_files() -> None:
    entries = read_registry(FOLDER / "adapters.yaml")
    assert list(entries) == list(EXAMPLE_ADAPTERS)
    for name, entry in entries.items():
        assert entry.digest == adapter_digest(FOLDER / name)
        assert (FOLDER / name / TENSORS).stat().st_size <= 2_000_000
        assert read_golden(FOLDER / name) and len(lines(FOLDER / name / "questions.jsonl")) == QUESTIONS
