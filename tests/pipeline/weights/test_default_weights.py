"""Each command that needs the default weights builds them if they are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.weights import default_weights
from pipeline.weights.recipes import find_recipe, recipes

ROOT = Path(__file__).resolve().parents[3]
USED = find_recipe(ROOT)
(OTHER,) = (recipe for recipe in recipes(ROOT).values() if recipe.name != USED.name)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone whose scripts/build_weights writes empty files and logs its options."""
    lock = tmp_path / "weights.lock"
    lock.write_text((ROOT / "weights.lock").read_text())
    files = [file["path"] for file in json.loads(lock.read_text())["weights"][0]["files"]]
    for name in ("small", "large"):
        recipe = tmp_path / "examples" / "honeycomb" / name / "recipe.json"
        recipe.parent.mkdir(parents=True)
        recipe.write_text((ROOT / recipe.relative_to(tmp_path)).read_text())
    command = tmp_path / "scripts" / "build_weights"
    command.parent.mkdir()
    command.write_text(
        f"""#!/bin/sh
echo "build $*" >> {tmp_path}/log
if [ "$2" ]; then folder="$5"; else folder={tmp_path}/weights/$1; fi
mkdir -p "$folder" && cd "$folder" && touch generation_config.json {" ".join(files)}
"""
    )
    command.chmod(0o755)
    monkeypatch.setattr(default_weights, "ROOT", tmp_path)
    monkeypatch.setattr(default_weights, "WEIGHTS_LOCK", lock)
    monkeypatch.delenv("WEIGHTS_DIR", raising=False)
    return tmp_path


def log(clone: Path) -> list[str]:
    path = clone / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_missing_default_weights_are_built(clone: Path) -> None:
    expected = default_weights.default_weights()
    assert default_weights.weights_or_default(None) == expected
    assert log(clone) == [f"build {USED.name}"]
    assert default_weights.weights_or_default(expected) == expected
    default_weights.ensure_weights()
    assert log(clone) == [f"build {USED.name}"], "once"
    (expected / "model.safetensors").unlink()
    assert default_weights.weights_or_default(expected) == expected
    assert len(log(clone)) == 2, "a file is missing, and the folder was given"


def test_other_weights_are_not_built(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_weights.weights_or_default(clone / "mine") == clone / "mine"
    assert default_weights.base_or_default(clone / "mine") == clone / "mine"
    monkeypatch.setenv("WEIGHTS_DIR", str(clone / "mine"))
    default_weights.ensure_weights()
    assert log(clone) == []


def test_the_base_for_training_is_written_once(clone: Path) -> None:
    base = clone / "weights" / USED.base.name
    assert default_weights.base_or_default(None) == base
    assert default_weights.base_or_default(None) == base
    assert log(clone) == [f"build {USED.name} --adapter none --unquantized {base}"]


def test_the_weights_of_another_recipe_are_built_once(clone: Path) -> None:
    lock = OTHER.lock(ROOT)
    (clone / lock.relative_to(ROOT)).write_text(lock.read_text())
    default_weights.ensure_recipe(OTHER.name)
    default_weights.ensure_recipe(OTHER.name)
    assert log(clone) == [f"build {OTHER.name}"]


def test_the_base_of_weights_without_a_recipe_has_to_be_given(clone: Path) -> None:
    (clone / USED.folder.relative_to(ROOT) / "recipe.json").unlink()
    with pytest.raises(SystemExit, match=rf"no recipe makes {USED.name}, .*or give a base"):
        default_weights.base_or_default(None)


def test_a_build_that_fails_ends_the_command(clone: Path) -> None:
    (clone / "scripts" / "build_weights").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(SystemExit) as ended:
        default_weights.weights_or_default(None)
    assert ended.value.code == 3
