"""A package of a user's checkpoint is complete, and the user's files are not changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.package.errors import PackageError
from pipeline.package.new_package import new_package
from pipeline.package.task_choice import TaskChoice
from serving.weights import WeightsLock, verify
from tests.pipeline.package.checkpoints import HONEYCOMB, digests, make_checkpoint

ROOT = Path(__file__).resolve().parents[3]
COG_YAML_SCHEMA = json.loads((ROOT / "tests" / "cog" / "cog_yaml_schema.json").read_text("utf-8"))


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run scripts/new_package with the Python of the tests, so that nothing is installed."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "new_package"), *map(str, arguments)],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("mine") / "checkpoint", task_file=HONEYCOMB)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("made") / "My Model"
    before = digests(checkpoint)
    new_package(folder, checkpoint, TaskChoice())
    assert digests(checkpoint) == before
    return folder


def moved(package: Path, folder: Path) -> Path:
    """A copy in another folder, with the environment of the tests."""
    shutil.copytree(package, folder)
    venv = folder / ".venv"
    venv.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != "installed.json":
            (venv / path.name).symlink_to(path)
    installed = hashlib.sha256((folder / "requirements" / "cpu.txt").read_bytes()).hexdigest()
    (venv / "installed.json").write_text(json.dumps({"cpu": installed}))
    return folder


def test_requirements_are_those_of_the_package_s_code(package: Path) -> None:
    requirements = (package / "requirements" / "cpu.txt").read_text()
    assert "scripts/build_weights" not in requirements
    pins = set(re.findall(r"^([\w.-]+)==", requirements, re.MULTILINE))
    ours = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE))
    assert ours - pins == {"gguf", "pip"}
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    assert "import gguf" not in code and "from gguf" not in code


def test_the_weights_equal_the_checkpoint_s_and_are_locked(package: Path, checkpoint: Path) -> None:
    weights = package / "weights" / "my-model"
    verify(weights, package / "weights.lock")
    assert (weights / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert json.loads((weights / "task.json").read_text()) == HONEYCOMB | {"name": "my-model"}
    assert not (weights / "README.md").exists()


def test_large_files_are_links_and_small_ones_are_not(package: Path, checkpoint: Path) -> None:
    weights = package / "weights" / "my-model"
    assert (weights / "model.safetensors").samefile(checkpoint / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "task.json"):
        assert not (weights / name).samefile(checkpoint / name)


def test_cog_yaml_is_valid_and_names_these_weights(package: Path) -> None:
    config = yaml.safe_load((package / "cog.yaml").read_text())
    jsonschema.Draft7Validator(COG_YAML_SCHEMA).validate(config)
    assert config["model"].endswith("/my-model")
    (weights,) = config["weights"]
    assert (weights["name"], weights["target"]) == ("my-model", "/src/weights/my-model")
    assert (package / weights["source"]["uri"]).is_dir()
    assert (package / config["build"]["python_requirements"]).is_file()
    (entry,) = WeightsLock.load(package / "weights.lock").weights
    assert (entry.name, entry.target) == (weights["name"], weights["target"])


def test_it_has_one_task_and_neither_tests_nor_the_example(package: Path) -> None:
    assert {path.name for path in package.iterdir()} == {
        *(".cog", ".dockerignore", ".gitignore", "LICENSE", "README.md", "cog.yaml", "gateway", "pipeline"),
        *("predict.py", "requirements", "scripts", "serving", "tasks", "weights", "weights.lock"),
    }
    pages = package / "gateway" / "pages"
    assert all(
        (pages / name).is_file() for name in ("templates/playground.html", "static/base.css", "profiles/chat.json")
    )
    assert not [path for path in package.rglob("*") if path.name == "__pycache__" or path.suffix == ".pyc"]
    text = "".join(path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".md", ".yaml", ".lock"))
    assert "honeycomb-nlq" not in text


def test_its_commands_run_without_this_repository(package: Path, tmp_path: Path) -> None:
    """In another folder, with nothing of this repository on the import path; the fake engine answers."""
    folder = moved(package, tmp_path / "moved")
    readme = (folder / "README.md").read_text()
    command = re.search(r"^scripts/predict (-i .*)$", readme, re.MULTILINE)
    assert command is not None
    for line in (
        f"scripts/predict -e fake {command[1]}",
        "scripts/write_schema",
        "scripts/lock_weights",
        "scripts/push --help",
    ):
        done = subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        assert str(ROOT) not in done.stderr
    assert digests(folder / ".cog") == digests(package / ".cog")
    assert (folder / "weights.lock").read_text() == (package / "weights.lock").read_text()


def test_a_missing_file_of_the_weights_is_named(package: Path, tmp_path: Path) -> None:
    folder = moved(package, tmp_path / "moved")
    (folder / "weights" / "my-model" / "config.json").unlink()
    done = subprocess.run(
        [folder / "scripts" / "predict", "-i", "nlq=a", "-i", "cols=a"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "lacks config.json, which weights.lock names; put the checkpoint there" in done.stderr


def test_next_steps_are_printed(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = command(tmp_path / "again", "--weights", checkpoint)
    assert done.returncode == 0, done.stderr
    for step in (f"cd {tmp_path / 'again'}", "scripts/predict -i nlq=", "scripts/serve", "scripts/push --replicate"):
        assert step in done.stdout
    assert "left out: README.md" in done.stderr
    again = command(tmp_path / "again", "--weights", checkpoint)
    assert again.returncode == 1
    assert "error: " in again.stderr and "is not empty" in again.stderr
    assert "Traceback" not in again.stderr


def test_links_in_a_hub_s_cache_become_files(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in checkpoint.iterdir():
        (snapshot / path.name).symlink_to(path)
    new_package(tmp_path / "made", snapshot, TaskChoice())
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_symlink()]


def test_only_shards_in_the_index_are_copied(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in (*names, "consolidated.safetensors"):
        shutil.copy(mine / "model.safetensors", mine / name)
    (mine / "model.safetensors").unlink()
    (mine / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    new_package(tmp_path / "made", mine, TaskChoice(), name="two-shards")
    held = {path.name for path in (tmp_path / "made" / "weights" / "two-shards").iterdir()}
    assert {name for name in held if "safetensors" in name} == {*names, "model.safetensors.index.json"}


def test_templates_for_other_uses_are_copied(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB)
    more = mine / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ tools }}")
    (more / "notes.txt").write_text("mine")
    new_package(tmp_path / "made", mine, TaskChoice(), name="two-templates")
    weights = tmp_path / "made" / "weights" / "two-templates"
    assert (weights / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"
    assert not (weights / "additional_chat_templates" / "notes.txt").exists()
    verify(weights, tmp_path / "made" / "weights.lock")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "without a GPU on the package's own engine"),
        ({}, "not quantized: scripts/quantize_awq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "on a GPU only, with vLLM: "),
        ({"architectures": ["GPTNeoXForCausalLM"]}, "on a GPU only, with vLLM: "),
    ],
)
def test_the_engines_that_run_the_checkpoint_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict, words: str
) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB, **config)
    new_package(tmp_path / "made", mine, TaskChoice())
    assert words in capsys.readouterr().err
    assert words in (tmp_path / "made" / "README.md").read_text()


def test_options_can_be_read_from_a_file(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file={"task": "chat", "name": "other"})
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(HONEYCOMB | {"prompt": "question-first"}))
    with pytest.raises(PackageError, match="give one of them"):
        new_package(tmp_path / "made", mine, TaskChoice("chat", file))
    new_package(tmp_path / "made", mine, TaskChoice(None, file))
    made = json.loads((tmp_path / "made" / "weights" / "made" / "task.json").read_text())
    assert made == HONEYCOMB | {"prompt": "question-first", "name": "made"}


def test_a_folder_that_is_not_empty_is_not_changed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for replace, message in ((False, "is not empty"), (True, "is not a package")):
        with pytest.raises(PackageError, match=message):
            new_package(tmp_path, checkpoint, TaskChoice(), replace=replace)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_force_replaces_a_package_and_keeps_other_files(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    made = Path(shutil.copytree(package, tmp_path / "made"))
    (made / ".git").mkdir()
    (made / "notes.txt").write_text("mine")
    (made / "serving" / "old.py").write_text("")
    new_package(made, checkpoint, TaskChoice(), name="second", replace=True)
    assert (made / "notes.txt").read_text() == "mine"
    assert (made / ".git").is_dir()
    assert not (made / "serving" / "old.py").exists()
    assert [path.name for path in (made / "weights").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failing_force_does_not_change_the_package(package: Path, tmp_path: Path) -> None:
    made = Path(shutil.copytree(package, tmp_path / "made"))
    before = digests(made)
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB | {"surface": "xml"})
    with pytest.raises(PackageError):
        new_package(made, mine, TaskChoice(), replace=True)
    assert digests(made) == before
