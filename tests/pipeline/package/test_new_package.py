"""A package of a user's checkpoint is complete, and the user's files are not changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.package.errors import PackageError
from pipeline.package.new_package import CODE_IMPORT, new_package
from pipeline.package.package_wheel import write_wheel
from pipeline.package.task_choice import TaskChoice
from pipeline.package.upgrade import upgrade_package
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
    installed = hashlib.sha256((ROOT / "requirements" / "cpu.txt").read_bytes()).hexdigest()
    (venv / "installed.json").write_text(json.dumps({"cpu": installed}))
    return folder


def run(folder: Path, line: str) -> str:
    """What a command line prints in a package's folder, with nothing of this repository in the environment."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stderr
    return done.stdout


def asking(package: Path) -> str:
    """The command of the package's README that asks it, with the fake engine."""
    command = re.search(r"^\./package.py predict (-i .*)$", (package / "README.md").read_text(), re.MULTILINE)
    assert command is not None
    return f"./package.py predict -e fake {command[1]}"


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


def test_it_has_its_owner_s_files_and_one_wheel(package: Path) -> None:
    files = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    (wheel,) = package.glob("*.whl")
    assert {name for name in files if not name.startswith("weights/")} == {
        *(".cog/openapi_schema.json", ".dockerignore", ".gitignore", "README.md", "cog.yaml", "package.py"),
        *("predict.py", "requirements/image.txt", "weights.lock", wheel.name),
    }
    text = "".join(path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".md", ".yaml", ".lock"))
    assert "honeycomb-nlq" not in text
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    pages = ("templates/playground.html", "static/base.css", "profiles/chat.json")
    assert {f"gateway/pages/{name}" for name in pages} <= names
    assert any(name.endswith(".cpp") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "examples/")) or name.endswith(".pyc")]


def test_the_same_code_is_the_same_wheel(package: Path, tmp_path: Path) -> None:
    (wheel,) = package.glob("*.whl")
    again = write_wheel(tmp_path)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_its_commands_run_without_this_repository(package: Path, tmp_path: Path) -> None:
    """In another folder, with nothing of this repository on the import path; the fake engine answers."""
    folder = moved(package, tmp_path / "moved")
    for line in (asking(package), "./package.py write_schema", "./package.py lock_weights", "./package.py push --help"):
        run(folder, line)
    assert "serve" in run(folder, "./package.py --help")
    assert digests(folder / ".cog") == digests(package / ".cog")
    assert (folder / "weights.lock").read_text() == (package / "weights.lock").read_text()


def test_a_package_is_upgraded_and_what_is_its_owner_s_stays(package: Path, tmp_path: Path) -> None:
    """Also one from before the wheel, whose code was copied into folders."""
    folder = moved(package, tmp_path / "old")
    (wheel,) = folder.glob("*.whl")
    (folder / "package.py").unlink()
    wheel.unlink()
    for name in ("serving", "tasks", "scripts"):
        (folder / name).mkdir()
        (folder / name / "mine.py").write_text("raise ImportError('old code')")
    (folder / "requirements" / "dev.txt").write_text("old==1.0\n")
    predict = (folder / "predict.py").read_text()
    mine = predict.replace(f"{CODE_IMPORT}\n\n", "").replace("The question", "My question")
    (folder / "predict.py").write_text(mine)
    (folder / "requirements" / "image.txt").write_text("my-package==1.0\n")
    yaml = (folder / "cog.yaml").read_text().replace("your-name", "me")
    (folder / "cog.yaml").write_text(yaml)
    for _ in range(2):  # the second time there is nothing to do
        assert upgrade_package(folder) == wheel.name
    assert (folder / "cog.yaml").read_text() == yaml
    assert (folder / "predict.py").read_text() == predict.replace("The question", "My question")
    assert "My question" in (folder / ".cog" / "openapi_schema.json").read_text()
    assert (folder / "requirements" / "image.txt").read_text() == "my-package==1.0\n"
    assert (folder / "before-upgrade" / "serving" / "mine.py").is_file() and not (folder / "serving").exists()
    assert [path.name for path in (folder / "before-upgrade" / "requirements").iterdir()] == ["dev.txt"]
    verify(folder / "weights" / "my-model", folder / "weights.lock")
    run(folder, asking(package))


def test_an_older_wheel_is_replaced_with_its_requirements(package: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(package, tmp_path / "old"))
    (wheel,) = folder.glob("*.whl")
    older = folder / "model_package-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(older, "w") as archive:
        archive.writestr("requirements/image.txt", "older==1.0\n")
    wheel.unlink()
    (folder / "requirements" / "image.txt").write_text("older==1.0\n")
    assert upgrade_package(folder) == wheel.name
    assert digests(folder) == digests(package)


def test_folders_and_requirements_that_an_owner_has_added_beside_the_wheel_stay(package: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(package, tmp_path / "own"))
    for path in (folder / "scripts" / "clean.py", folder / "requirements" / "train" / "gpu.txt"):
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    before = digests(folder)
    upgrade_package(folder)
    assert digests(folder) == before


def test_what_is_no_package_is_not_upgraded(package: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"is no package: it has no cog\.yaml"):
        upgrade_package(tmp_path)
    folder = Path(shutil.copytree(package, tmp_path / "other"))
    (folder / "predict.py").write_text("from cog import BasePredictor\n")
    before = digests(folder)
    with pytest.raises(PackageError, match="imports nothing of this project"):
        upgrade_package(folder)
    assert digests(folder) == before


def test_a_missing_file_of_the_weights_is_named(package: Path, tmp_path: Path) -> None:
    folder = moved(package, tmp_path / "moved")
    (folder / "weights" / "my-model" / "config.json").unlink()
    done = subprocess.run(
        [folder / "package.py", "predict", "-i", "nlq=a", "-i", "cols=a"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "lacks config.json, which weights.lock names; put the checkpoint there" in done.stderr


def test_next_steps_are_printed(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = command(tmp_path / "again", "--weights", checkpoint)
    assert done.returncode == 0, done.stderr
    for step in (f"cd {tmp_path / 'again'}", "./package.py predict -i nlq=", "./package.py serve", "push --replicate"):
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
    (wheel,) = made.glob("*.whl")
    wheel.rename(made / "model_package-0.1.0-py3-none-any.whl")
    new_package(made, checkpoint, TaskChoice(), name="second", replace=True)
    assert (made / "notes.txt").read_text() == "mine"
    assert (made / ".git").is_dir()
    assert [path.name for path in made.glob("*.whl")] == [wheel.name]
    assert [path.name for path in (made / "weights").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failing_force_does_not_change_the_package(package: Path, tmp_path: Path) -> None:
    made = Path(shutil.copytree(package, tmp_path / "made"))
    before = digests(made)
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB | {"surface": "xml"})
    with pytest.raises(PackageError):
        new_package(made, mine, TaskChoice(), replace=True)
    assert digests(made) == before
