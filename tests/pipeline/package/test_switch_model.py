"""Switching models changes all files in one step, at whatever moment it is killed, and can be undone exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.environment.journal import finish_change
from pipeline.locking.make_lock import lock_source
from pipeline.package.errors import PackageError
from pipeline.package.new_package import predict_source
from pipeline.package.switch_model import known_models, replace_stanza, use_weights
from pipeline.weights.atomic import write_json
from pipeline.weights.recipes import find_recipe, recipes
from pipeline.weights.safetensors_io import write_safetensors
from serving.weights import verify
from tests.pipeline.weights.checkpoint_fixtures import Arrays

ROOT = Path(__file__).resolve().parents[3]
FILES = ("cog.yaml", "weights.lock", "predict.py", ".cog/openapi_schema.json")
MISTRAL = "hc-mistral-alpaca-merged-awq"
USED = find_recipe(ROOT)
DEFAULT = USED.name
(OTHER,) = (recipe for recipe in recipes(ROOT).values() if recipe.name != DEFAULT)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """This repository's package without its weights, and a small second model."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "models", tmp_path / "models")
    weights = tmp_path / "weights" / "mine"
    weights.mkdir(parents=True)
    write_safetensors(weights / "model.safetensors", Arrays({}))
    write_json(weights / "task.json", {"task": "chat", "name": "mine"})
    lock_source(str(weights), tmp_path, None, None)
    return tmp_path


def state(package: Path) -> dict[str, str]:
    """All files of the package except the weights."""
    skipped = (".safetensors", ".partial")
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix not in skipped]
    return {str(path.relative_to(package)): path.read_text() for path in files}


def test_all_files_are_changed_and_the_switch_can_be_undone(package: Path) -> None:
    before = state(package)
    use_weights(package, "mine")
    (stanza,) = yaml.safe_load((package / "cog.yaml").read_text())["weights"]
    expected = {"name": "mine", "target": "/src/weights/mine", "source": {"uri": "weights/mine"}}
    assert stanza == expected
    verify(package / "weights" / "mine", package / "weights.lock")
    assert (package / "predict.py").read_text() == predict_source({"task": "chat"})
    schema = json.loads((package / ".cog" / "openapi_schema.json").read_text())
    assert "messages" in schema["components"]["schemas"]["Input"]["properties"]
    assert [model.name for model in known_models(package) if model.is_used] == ["mine"]
    use_weights(package, DEFAULT)
    assert state(package) == before


def test_models_with_recipes_keep_their_locks_there_and_need_not_be_built(package: Path) -> None:
    for recipe in (ROOT / "examples" / "honeycomb").glob("*/recipe.json"):
        folder = package / recipe.parent.relative_to(ROOT)
        folder.mkdir(parents=True)
        shutil.copy(recipe, folder)
    other = package / OTHER.folder.relative_to(ROOT) / "weights.lock"
    shutil.copy(OTHER.lock(ROOT), other)
    before = state(package)
    (model,) = [model for model in known_models(package) if model.name == OTHER.name]
    assert f"not there yet: scripts/build_weights {OTHER.name}" in model.state()
    use_weights(package, OTHER.name)
    assert (package / "weights.lock").read_text() == before[str(other.relative_to(package))]
    assert (package / "predict.py").read_text() == before["predict.py"]
    assert not other.exists()
    own = package / USED.folder.relative_to(ROOT) / "weights.lock"
    assert own.read_text() == before["weights.lock"]
    use_weights(package, DEFAULT)
    assert state(package) == before


def test_the_user_s_changes_are_kept_for_switching_back(package: Path) -> None:
    use_weights(package, "mine")
    predict = (package / "predict.py").read_text().replace("The user's message; or give messages.", "Your words")
    (package / "predict.py").write_text(predict)
    use_weights(package, DEFAULT)
    assert "Your words" not in (package / "predict.py").read_text()
    use_weights(package, "mine")
    assert (package / "predict.py").read_text() == predict
    assert "Your words" in (package / ".cog" / "openapi_schema.json").read_text()


def test_other_edits_in_cog_yaml_are_kept(package: Path) -> None:
    text = (package / "cog.yaml").read_text().replace("r8.im/your-name/", "r8.im/somebody/") + "\n# the end\n"
    (package / "cog.yaml").write_text(text)
    use_weights(package, "mine")
    assert "r8.im/somebody/" in (package / "cog.yaml").read_text()
    use_weights(package, DEFAULT)
    assert (package / "cog.yaml").read_text() == text


def test_a_model_without_a_lock_is_an_error_that_says_how_to_lock_it(package: Path) -> None:
    before = state(package)
    with pytest.raises(PackageError, match=rf"has no lock. Run scripts/lock_weights {MISTRAL} where"):
        use_weights(package, MISTRAL)
    assert state(package) == before
    (model,) = [model for model in known_models(package) if model.name == MISTRAL]
    assert model.task_file()["task"] == "honeycomb"


def test_a_list_says_how_to_get_the_files_and_has_no_model_for_a_lock_of_a_running_download(package: Path) -> None:
    (package / "weights" / ".base.lock").touch()  # scripts/fetch holds one beside the folder that it fills
    models = known_models(package)
    assert sorted(model.name for model in models) == sorted([MISTRAL, DEFAULT, "mine"])
    (used,) = [model for model in models if model.is_used]
    assert "not there yet: scripts/fetch --lock weights.lock" in used.state()


def test_unknown_models_and_locks_of_others_are_refused(package: Path) -> None:
    with pytest.raises(PackageError, match=r"no model 'no-such'; known are .*mine"):
        use_weights(package, "no-such")
    shutil.copy(ROOT / "weights.lock", package / "weights" / "mine.lock")
    with pytest.raises(PackageError, match=f"locks {DEFAULT}, not mine"):
        use_weights(package, "mine")
    with pytest.raises(PackageError, match="begins a line"):
        replace_stanza("build: {}\n", "weights: []\n")


def test_a_new_lock_of_the_model_in_use_is_applied(package: Path) -> None:
    use_weights(package, "mine")
    write_json(package / "weights" / "mine" / "task.json", {"task": "chat", "name": "changed"})
    lock_source(str(package / "weights" / "mine"), package, None, None)
    use_weights(package, "mine")
    verify(package / "weights" / "mine", package / "weights.lock")


def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(package: Path) -> None:
    """Killed before each rename, removal and opening of a file; Cog never sees a mixture of both states."""
    old = state(package)
    use_weights(package, "mine")
    new = state(package)
    use_weights(package, DEFAULT)
    seen = set()
    for step in range(200):
        if not killed_at(step, package):
            break
        if (package / "cog.yaml").exists():
            half = {name: (package / name).read_text() for name in FILES}
            assert half in ({name: state[name] for name in FILES} for state in (old, new))
        finish_change(package)  # as every command does first
        found = state(package)
        assert found in (old, new)
        seen.add("new" if found == new else "old")
        if found == new:
            use_weights(package, DEFAULT)
    assert step > 15
    assert seen == {"old", "new"}


def killed_at(step: int, package: Path) -> bool:
    """Switch in a process that is killed at this step; returns whether it was killed."""
    child = os.fork()
    if child == 0:
        left = [step]

        def count(event: str, _: object) -> None:
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        use_weights(package, "mine")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_the_repository_s_predict_py_equals_its_task_s_template() -> None:
    """New packages of the task get a copy of the template."""
    assert (ROOT / "predict.py").read_text() == predict_source({"task": "honeycomb"})
