"""A recipe is found by the name of its weights, and a wrong one is refused with what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.paths import ROOT
from pipeline.weights.errors import CheckpointError
from pipeline.weights.recipes import find_recipe, read_recipe, recipes
from tests.small_model import LOCK

TASK = {"task": "honeycomb", "name": "small", "prompt": "columns-first", "surface": "json"}


def write_recipe(root: Path, folder: str, **task: str) -> Path:
    path = root / "examples" / "honeycomb" / folder / "recipe.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"base": "smollm2-135m-instruct", "task": TASK | task}))
    return path


def write_lock(path: Path, name: str) -> None:
    path.write_text(LOCK.read_text("utf-8").replace("honeycomb-nlq-small", name))


def test_there_is_a_large_and_a_small_recipe() -> None:
    assert recipes(ROOT).keys() == {"honeycomb-nlq-large", "honeycomb-nlq-small"}


def test_without_a_name_the_recipe_is_that_of_the_weights_in_use(tmp_path: Path) -> None:
    write_recipe(tmp_path, "one", name="one")
    write_recipe(tmp_path, "two", name="two")
    write_lock(tmp_path / "weights.lock", "two")
    assert find_recipe(tmp_path).name == "two"
    assert find_recipe(tmp_path, "one").weights(tmp_path) == tmp_path / "weights" / "one"
    write_lock(tmp_path / "weights.lock", "mine")
    with pytest.raises(CheckpointError, match=r"no recipe makes mine, which weights.lock names: .*make: one, two"):
        find_recipe(tmp_path)
    with pytest.raises(CheckpointError, match=r"no recipe makes three\. Recipes in examples/honeycomb make: one, two"):
        find_recipe(tmp_path, "three")


def test_the_lock_in_use_is_the_package_s_and_the_others_are_in_their_folders(tmp_path: Path) -> None:
    write_recipe(tmp_path, "a", name="one")
    write_recipe(tmp_path, "b", name="two")
    one, two = recipes(tmp_path).values()
    write_lock(tmp_path / "weights.lock", "one")
    assert (one.lock(tmp_path), two.lock(tmp_path)) == (tmp_path / "weights.lock", two.folder / "weights.lock")
    write_lock(tmp_path / "weights.lock", "two")
    assert (one.lock(tmp_path), two.lock(tmp_path)) == (one.folder / "weights.lock", tmp_path / "weights.lock")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('["base"]', "only the last may be left out"),
        ('{"base": "smollm2-135m-instruct"}', "only the last may be left out"),
        ('{"base": "smollm2-135m-instruct", "task": {}, "seed": 1}', "only the last may be left out"),
        ('{"base": "gpt-5", "task": {}}', "the base 'gpt-5' is unknown; known are smollm2-135m-instruct, "),
        (
            '{"base": "smollm2-135m-instruct", "task": {}, "context_length": "8k"}',
            "context_length is '8k', not a positive",
        ),
        ('{"base": "smollm2-135m-instruct", "task": {}, "context_length": 0}', "context_length is 0, not a positive"),
        ('{"base": "smollm2-135m-instruct", "task": {"task": "honeycomb"}}', "an object with task and name"),
    ],
)
def test_a_wrong_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_recipe(tmp_path, "wrong").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        recipes(tmp_path)


def test_a_folder_without_a_recipe_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"recipe.json cannot be read.*check it out again"):
        read_recipe(tmp_path)
    path = write_recipe(tmp_path, "one")
    shutil.copytree(path.parent, path.parent.with_name("two"))
    with pytest.raises(CheckpointError, match="are both of small; rename one"):
        recipes(tmp_path)
