"""scripts/dev/make_data as a whole: reproducible bytes, splits that share nothing, and valid queries only."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from examples.honeycomb.datagen.kinds import KINDS
from examples.honeycomb.datagen.vocabulary import CORE, entity_parts, vocabularies
from examples.honeycomb.datagen.words import split_words
from examples.honeycomb.datagen.written_questions import WRITTEN
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.prompt import build_prompt, check_nlq
from tasks.honeycomb.query import parse_query

ROOT = Path(__file__).resolve().parents[3]
SPLITS = ("train", "validation", "test_columns", "test_templates", "test_people", "test_written")
EXAMPLES = 2000
CALIBRATION = 20


def make(out: Path, *, seed: int, hash_seed: str) -> dict[str, list[dict[str, Any]]]:
    """Runs the command and reads what it wrote. `test_written_questions.py` has the tests of the written ones."""
    options = ["--out", str(out), "--seed", str(seed), "--examples", str(EXAMPLES), "--written", "0"]
    options += ["--calibration", str(CALIBRATION), str(out / "calibration.jsonl")]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(ROOT / "scripts" / "dev" / "make_data"), *options]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=ROOT)
    return {name: read(out / f"{name}.jsonl") for name in SPLITS}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return make(folder, seed=0, hash_seed="1")


@pytest.fixture(scope="module")
def rows(data: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for split in data.values() for row in split]


def test_a_seed_gives_the_same_bytes_whatever_the_hash_seed(folder, data, tmp_path) -> None:
    make(tmp_path, seed=0, hash_seed="2")
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_another_seed_gives_other_examples(data, tmp_path) -> None:
    other = make(tmp_path, seed=1, hash_seed="1")
    assert not {row["nlq"] for row in other["train"][:8]} & {row["nlq"] for row in data["train"][:8]}


def test_the_splits_are_as_large_as_asked(data) -> None:
    assert {name: len(split) for name, split in data.items()} == {
        "train": EXAMPLES * 92 // 100,
        "validation": EXAMPLES // 100,
        "test_columns": EXAMPLES * 3 // 100,
        "test_templates": EXAMPLES * 3 // 100,
        "test_people": EXAMPLES // 100,
        "test_written": sum(len(read(path)) - 1 for path in (WRITTEN / "held_out").glob("*.jsonl")),
    }


def test_no_column_list_is_in_two_splits(data) -> None:
    lists = [{frozenset(row["cols"]) for row in split} for split in data.values()]
    assert sum(map(len, lists)) == len(set.union(*lists))


def test_training_never_sees_a_held_out_vocabulary(data) -> None:
    held = {name for name, vocabulary in vocabularies().items() if vocabulary.held_out} | {"entities_held"}
    for name in ("train", "validation"):
        assert not held & {v for row in data[name] for v in row["vocabularies"]}
    for name in ("test_columns", "test_templates"):
        domains = {v for row in data[name] for v in row["vocabularies"] if v not in CORE}
        assert domains and domains <= held


def test_no_column_of_a_held_out_domain_shares_its_words_with_a_training_column() -> None:
    words: dict[bool, set[tuple[str, ...]]] = {True: set(), False: set()}
    for vocabulary in vocabularies().values():
        if vocabulary.name not in CORE:
            words[vocabulary.held_out] |= {split_words(column.name) for column in vocabulary.columns}
    assert not words[True] & words[False]
    assert not set(entity_parts(True)[0]) & set(entity_parts(False)[0])


def test_unseen_templates_occur_only_in_test_templates_and_in_every_question_there(data) -> None:
    for name in ("train", "validation", "test_columns"):
        assert not [row for row in data[name] if any(t.endswith("!") for t in row["templates"])]
    for row in data["test_templates"]:
        frames = [template for template in row["templates"] if "_frame/" in template]
        assert frames and all(frame.endswith("!") for frame in frames), row["nlq"]


def test_every_query_is_canonical_and_uses_only_the_columns_given(rows) -> None:
    for row in rows:
        text = json.dumps(row["query"], ensure_ascii=False)
        assert canonical_json(parse_query(text, row["cols"])) == text


def test_every_question_is_valid_input_and_has_no_placeholders_left(rows) -> None:
    for row in rows:
        assert check_nlq(row["nlq"]) == row["nlq"]
        marks = "\x02\x03" if row["category"].startswith(("people ", "written ")) else "\x02\x03{}"
        assert not set(marks) & set(row["nlq"].replace("{id}", "")), row["nlq"]


def test_no_question_is_asked_twice_of_the_same_columns(rows) -> None:
    counts = Counter((row["nlq"].lower(), tuple(row["cols"])) for row in rows)
    assert max(counts.values()) == 1


def test_every_kind_of_question_occurs(data) -> None:
    kinds = Counter(row["category"] for row in data["train"] if not row["category"].startswith("people "))
    assert set(kinds) == set(KINDS)
    assert kinds.most_common(1)[0][1] < 0.15 * len(data["train"])
    features = Counter(
        feature for row in data["train"] for feature in row["features"] if not feature.startswith("asks ")
    )
    assert set(features) == {"breakdown", "time", "or", "limit", "order", "granularity", "compare", "one more"}


def test_the_training_file_mixes_both_generators_throughout(data) -> None:
    for part in (data["train"], data["train"][: EXAMPLES // 4]):
        people = sum(row["category"].startswith("people ") for row in part)
        assert 0.45 < people / len(part) < 0.55


def test_questions_about_the_same_column_list_are_adjacent_in_training(data) -> None:
    runs = [(key, len(list(group))) for key, group in groupby(data["train"], lambda row: row["column_set"])]
    assert len({key for key, _ in runs}) == len(runs)
    assert sum(length == 8 for _, length in runs) > 0.95 * len(runs)


def test_prompts_are_as_long_as_real_requests(rows) -> None:
    columns = sorted(len(row["cols"]) for row in rows)
    prompts = sorted(len(build_prompt(row["nlq"], row["cols"], "columns-first")) for row in rows)
    answers = sorted(len(json.dumps(row["query"])) for row in rows)
    assert columns[0] >= 5 and columns[-1] <= 80
    assert 18 < sum(columns) / len(columns) < 32
    assert sum(prompts) / len(prompts) < 900 and prompts[-1] < 3500  # about 210 and 650 tokens
    assert sum(answers) / len(answers) < 320 and answers[-1] < 1200


def test_calibration_texts_are_training_prompts_with_their_answers(folder, data) -> None:
    texts = [row["text"] for row in read(folder / "calibration.jsonl")]
    expected = {
        build_prompt(row["nlq"], row["cols"], "columns-first") + json.dumps(row["query"], ensure_ascii=False)
        for row in data["train"]
    }
    assert len(texts) == CALIBRATION == len(set(texts))
    assert set(texts) <= expected
