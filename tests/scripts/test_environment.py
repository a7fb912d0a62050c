"""A script makes its environment, enters it, and makes good what was killed; a tiny wheel, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import _environment  # noqa: E402
import _install  # noqa: E402

SCRIPT = """
import sys
from _environment import ensure
ensure(sys.argv[1])
import tiny
print(tiny.VERSION, sys.prefix, sys.argv[1:])
"""


class Tree:
    """A checkout with these scripts, a script that uses them, and an index of one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        (folder / "requirements").mkdir()
        for name in ("_environment.py", "_install.py"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts")
        (folder / "scripts" / "probe").write_text(SCRIPT)
        self.require("cpu", "tiny==1")
        for version in ("1", "2"):
            self._make_wheel(version)

    def require(self, name: str, text: str) -> None:
        (self.folder / "requirements" / f"{name}.txt").write_text(f"{text}\n")

    def start(self, name: str = "cpu", *arguments: str) -> subprocess.Popen[str]:
        """With the base Python, as a user would; not the one of the tests' environment."""
        env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "_ENTERED_VENV", "PYTHONPATH")}
        env |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder / "wheels"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        python = str(Path(sys.base_prefix) / "bin" / "python3.11")
        command = [python, str(self.folder / "scripts" / "probe"), name, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=env, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL
        )

    def run(self, name: str = "cpu", *arguments: str) -> tuple[int, str, str]:
        process = self.start(name, *arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def _make_wheel(self, version: str) -> None:
        (self.folder / "wheels").mkdir(exist_ok=True)
        info = f"tiny-{version}.dist-info"
        with zipfile.ZipFile(self.folder / "wheels" / f"tiny-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny.py", f"VERSION = {version}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
            tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{info}/WHEEL", tag)
            wheel.writestr(
                f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
            )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, tuple[int, str, str]]:
    """A checkout after its first call, and what that said."""
    tree = Tree(tmp_path_factory.mktemp("first") / "checkout")
    return tree, tree.run("cpu", "-x", "a b")


@pytest.fixture
def tree(first: tuple[Tree, object], tmp_path: Path) -> Tree:
    """A checkout whose environment was made by hand: making one takes seconds, copying one does not."""
    tree = Tree(tmp_path / "checkout")
    shutil.copytree(first[0].folder / ".venv", tree.folder / ".venv", symlinks=True)
    (tree.folder / ".venv" / "installed.json").unlink()
    return tree


def test_the_first_call_makes_the_environment_and_the_script_runs_in_it(first):
    tree, (code, out, err) = first
    assert code == 0, err
    assert out == f"1 {tree.folder}/.venv ['cpu', '-x', 'a b']\n"
    assert "Setting up .venv" in err
    assert "1/1 packages" in err
    assert ".venv is ready" in err


def test_the_second_call_is_quick_and_a_change_of_requirements_installs_again(tree):
    assert tree.run()[0] == 0
    started = time.monotonic()
    assert tree.run() == (0, f"1 {tree.folder}/.venv ['cpu']\n", "")
    assert time.monotonic() - started < 2
    tree.require("cpu", "tiny==2")
    code, out, err = tree.run()
    assert (code, out[0]) == (0, "2")
    assert "Setting up" in err


def test_dev_is_cpu_and_more_in_the_same_folder(tree):
    tree.require("dev", "-r cpu.txt")
    assert tree.run("dev")[0] == 0
    assert tree.run("cpu")[2] == "", "what dev installed is not installed again for cpu"


def test_of_two_calls_at_once_one_installs_and_one_waits(tree):
    processes = [tree.start(), tree.start()]
    ends = [(process.communicate(timeout=120), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0, 0], ends
    messages = "".join(err for (_, err), _ in ends)
    assert messages.count("Setting up") == 1
    assert messages.count("Waiting for another process") == 1


def test_a_killed_install_is_made_good(tree):
    """What pip had half installed looks whole to it, so the folder is made anew."""
    assert tree.run()[0] == 0
    site_packages = tree.folder / ".venv" / "lib" / "python3.11" / "site-packages"
    (site_packages / "tiny.py").write_text("half a fi")
    (tree.folder / ".venv" / "installed.json").write_text(json.dumps({"installing": "cpu"}))
    code, out, err = tree.run()
    assert (code, out[0]) == (0, "1"), err


def test_what_pip_cannot_install_is_told_and_tried_again_later(tree):
    tree.require("cpu", "tiny==3")
    code, out, err = tree.run()
    assert (code, out) == (1, "")
    assert "tiny==3" in err
    assert "Traceback" not in err
    tree.require("cpu", "tiny==2")
    assert tree.run()[0] == 0


def test_packages_that_ask_for_too_much_are_installed_without_what_they_ask_for(tree):
    """NAME.no-deps.txt, after NAME.txt; a change of it counts too."""
    (tree.folder / "requirements" / "cpu.txt").write_text("# nothing\n")
    tree.require("cpu.no-deps", "tiny==1")
    assert tree.run()[1][0] == "1"
    tree.require("cpu.no-deps", "tiny==2")
    assert tree.run()[1][0] == "2"


def test_unknown_names_and_missing_files_are_told(tree):
    assert "Unknown environment 'gpu'; there are cpu, dev" in tree.run("gpu")[2]
    assert "requirements/awq.txt is missing" in tree.run("awq")[2]


def test_without_python_3_11_it_says_what_to_install(monkeypatch, tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.8\n")
    old.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(old))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"Python 3\.11 is needed.*python3\.11-venv"):
        _install._find_python()


@pytest.mark.parametrize("name", ["cpu", "dev", "image"])
def test_every_requirement_is_an_exact_version(name):
    lines = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()
    requirements = [line.split("#")[0].strip() for line in lines]
    assert not [line for line in requirements if line and "==" not in line and not line.startswith("-r ")]


def test_every_environment_has_its_requirement_file():
    for name in _environment.ENVIRONMENTS:
        assert _environment.requirement_files(name)


def test_the_scripts_that_make_environments_run_on_python_3_8():
    """They tell which Python is missing, so they must not need it themselves."""
    import ast

    for name in ("_environment.py", "_install.py"):
        ast.parse((ROOT / "scripts" / name).read_text("utf-8"), feature_version=(3, 8))
