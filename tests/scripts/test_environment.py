"""A script makes its environment, enters it, and repairs an interrupted installation; tiny wheels, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.environment import install
from tests.cuda_driver import make_driver

ROOT = Path(__file__).resolve().parents[2]

UV_VERSION = (ROOT / "requirements" / "uv.txt").read_text("utf-8").split()[0].partition("==")[2]

SCRIPT = """
import sys
from _environment import ensure
ensure(sys.argv[1], for_help="cpu")
import tiny
print(tiny.VERSION, sys.prefix, sys.argv[1:])
"""


class Tree:
    """A checkout with these scripts, a script that uses them, and an index of one package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        (folder / "requirements").mkdir()
        shutil.copy(ROOT / "scripts" / "_environment.py", folder / "scripts")
        shutil.copytree(ROOT / "pipeline" / "environment", folder / "pipeline" / "environment")
        (folder / "serving").mkdir()
        for name in ("pipeline/__init__.py", "pipeline/paths.py", "serving/__init__.py", "serving/devices.py"):
            shutil.copy(ROOT / name, folder / name)
        shutil.copy(ROOT / "requirements" / "uv.txt", folder / "requirements")
        (folder / "scripts" / "probe").write_text(SCRIPT)
        self.require("cpu", "tiny==1")
        for version in ("1", "2"):
            # Python takes a compiled module for current if time in seconds and size of the source are the same.
            self.make_wheel("tiny", version, f"VERSION = {version}\n" + "#" * int(version))
        self.make_wheel("uv", UV_VERSION, "", f'#!/bin/sh\nexec {install.load_uv().program} "$@"\n')

    def require(self, name: str, text: str) -> None:
        (self.folder / "requirements" / f"{name}.txt").write_text(f"{text}\n")

    def start(self, name: str = "cpu", *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start it with the system's Python, as a user would, not with the tests' environment."""
        env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "_ENTERED_VENV", "PYTHONPATH")}
        env |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder / "wheels"),
            "PIP_CONFIG_FILE": os.devnull,
            **variables,
        }
        python = str(Path(sys.base_prefix) / "bin" / "python3.11")
        command = [python, str(self.folder / "scripts" / "probe"), name, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL)

    def run(self, name: str = "cpu", *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(name, *arguments, **variables)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def make_wheel(self, name: str, version: str, module: str, script: str = "", needs: str = "") -> None:
        """Write a package of one module, with a script of the same name if `script` is given."""
        (self.folder / "wheels").mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            f"{name}.py": module,
            f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if script:
            files[f"{name}-{version}.data/scripts/{name}"] = script
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(self.folder / "wheels" / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = 0o100755 << 16
                wheel.writestr(entry, text)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, tuple[int, str, str]]:
    """A checkout after its first call, and what that printed. An earlier download of uv was interrupted."""
    tree = Tree(tmp_path_factory.mktemp("first") / "checkout")
    half = tree.folder / "build" / f"uv-{UV_VERSION}" / "bin" / "uv"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"\x7fELF, and then nothing")
    half.chmod(0o755)
    return tree, tree.run("cpu", "-x", "a b")


@pytest.fixture
def tree(first: tuple[Tree, object], tmp_path: Path) -> Tree:
    """A checkout with a copied environment, which is faster than making one."""
    tree = Tree(tmp_path / "checkout")
    (tree.folder / "build").mkdir()
    (tree.folder / "build" / f"uv-{UV_VERSION}").symlink_to(first[0].folder / "build" / f"uv-{UV_VERSION}")
    shutil.copytree(first[0].folder / ".venv", tree.folder / ".venv", symlinks=True)
    (tree.folder / ".venv" / "installed.json").unlink()
    return tree


def test_the_first_call_makes_the_environment_and_the_script_runs_in_it(first):
    tree, (code, out, err) = first
    assert code == 0, err
    assert out == f"1 {tree.folder}/.venv ['cpu', '-x', 'a b']\n"
    assert "Setting up .venv" in err
    assert "tiny==1" in err, "uv's own words"
    assert ".venv is ready" in err


def test_the_second_call_installs_nothing_and_a_change_of_requirements_installs_again(tree):
    assert tree.run()[0] == 0
    assert tree.run() == (0, f"1 {tree.folder}/.venv ['cpu']\n", "")
    tree.require("cpu", "tiny==2")
    code, out, err = tree.run()
    assert (code, out[0]) == (0, "2")
    assert "Setting up" in err


def test_packages_are_compiled_once_for_any_environment_variables(tree):
    assert tree.run(PYTHONDONTWRITEBYTECODE="1")[0] == 0
    assert list(tree.folder.glob(".venv/lib/python3.11/site-packages/__pycache__/tiny.*.pyc"))


def test_a_user_without_a_home_folder_gets_an_environment_too(tree):
    assert tree.run(HOME="/proc/nobody", XDG_CACHE_HOME="")[1][0] == "1"
    assert (tree.folder / "build" / "uv-cache").is_dir()


def test_dev_extends_cpu_in_the_same_folder(tree):
    tree.require("dev", "-r cpu.txt")
    assert tree.run("dev")[0] == 0
    assert tree.run("cpu")[2] == "", "what dev installed is not installed again for cpu"


def test_help_needs_no_more_than_the_smaller_environment(tree):
    tree.require("dev", "-r cpu.txt\nnothing-has-this-name==1")
    assert tree.run("dev", "--help")[:2] == (0, f"1 {tree.folder}/.venv ['dev', '--help']\n")
    assert tree.run("dev")[0] == 1


@pytest.mark.parametrize(
    "script", ["train", "train_adapter", "train_drafter", "improve", "evaluate", "compare", "plan"]
)
def test_help_of_users_scripts_imports_nothing_of_the_larger_environment(script, tmp_path):
    lines = (ROOT / "requirements" / "dev.txt").read_text("utf-8").splitlines()
    only_in_dev = {line.partition("==")[0].replace("-", "_") for line in lines if "==" in line}
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Missing:\n    def find_spec(self, name, *_):\n"
        f"        if name in {only_in_dev}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    command = [sys.executable, str(ROOT / "scripts" / script), "--help"]
    shown = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert shown.returncode == 0 and "Usage" in shown.stdout, shown.stderr


def test_an_environment_that_extends_another_is_installed_after_it_in_the_same_folder(tree):
    tree.make_wheel("extra", "1", "")
    tree.require("vllm", "tiny==1")
    tree.require("vllm-suffix", "extra==1")
    code, out, err = tree.run("vllm-suffix")
    assert (code, out[0]) == (0, "1"), err
    assert err.index("tiny==1") < err.index("extra==1")
    assert tree.run("vllm")[2] == "", "a complete environment is not changed"
    tree.require("vllm", "tiny==2")
    assert tree.run("vllm")[1][0] == "2"
    assert "Setting up" in tree.run("vllm-suffix")[2], "its base has changed"


def test_of_two_calls_at_once_one_installs_and_one_waits(tree):
    processes = [tree.start(), tree.start()]
    ends = [(process.communicate(timeout=120), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0, 0], ends
    messages = "".join(err for (_, err), _ in ends)
    assert messages.count("Setting up") == 1
    assert messages.count("Waiting for another process") == 1


def test_an_interrupted_installation_is_repaired(tree):
    """A partly installed package looks complete to uv, so the folder is made again."""
    assert tree.run()[0] == 0
    site_packages = tree.folder / ".venv" / "lib" / "python3.11" / "site-packages"
    (site_packages / "tiny.py").write_text("half a fi")
    (tree.folder / ".venv" / "installed.json").write_text(json.dumps({"installing": "cpu"}))
    code, out, err = tree.run()
    assert (code, out[0]) == (0, "1"), err


def test_a_package_that_is_not_found_is_named_and_the_environment_is_unchanged(tree):
    assert tree.run()[0] == 0
    tree.require("cpu", "tiny==3")
    code, out, err = tree.run()
    assert (code, out) == (1, "")
    assert "tiny==3" in err
    assert "Fix the cause above" in err
    assert "Traceback" not in err
    tree.require("cpu", "tiny==1")
    assert tree.run() == (0, f"1 {tree.folder}/.venv ['cpu']\n", ""), "nothing had to be installed"


def test_an_installation_that_fails_in_the_middle_starts_again(tree):
    """uv does not undo its changes, so the environment may not count as complete then."""
    assert tree.run()[0] == 0
    (tree.folder / "wheels" / "tiny-2-py3-none-any.whl").write_bytes(b"PK, and then nothing")
    tree.require("cpu", "tiny==2")
    assert tree.run()[0] == 1
    tree.require("cpu", "tiny==1")
    code, out, err = tree.run()
    assert (code, out[0]) == (0, "1"), err


def test_no_cuda_is_installed_without_a_gpu(tree):
    """The torch that pip would find needs CUDA, and PyTorch's own index has no version 0.0.1."""
    tree.make_wheel("torch", "0.0.1", "", needs="nvidia-tiny==1")
    tree.make_wheel("nvidia_tiny", "1", "")
    tree.require("cpu", "tiny==1\ntorch==0.0.1")
    code, _, err = tree.run(CUDA_VISIBLE_DEVICES="")
    assert code == 1
    assert "This machine has no GPU, so PyTorch's CPU build is installed" in err
    assert "nvidia-tiny==1, which needs a GPU. Put PyTorch's CPU build into a folder" in err
    assert not list(tree.folder.glob(".venv/lib/python3.11/site-packages/nvidia*"))


def test_a_cpu_build_that_pip_would_find_is_used(tree):
    """For example in a folder of wheels, or in PyTorch's index, if pip is configured so."""
    tree.make_wheel("torch", "0.0.1", "", needs="nvidia-tiny==1")
    tree.make_wheel("torch", "0.0.1+cpu", "")
    tree.require("cpu", "tiny==1\ntorch==0.0.1")
    code, _, err = tree.run(CUDA_VISIBLE_DEVICES="")
    assert code == 0, err
    assert "torch==0.0.1+cpu" in err


def test_where_a_gpu_has_come_torch_for_cpus_is_replaced_by_that_for_cuda_unless_the_gpu_stays_idle(tree, tmp_path):
    """uv alone would keep it: for 0.0.1 it takes 0.0.1+cpu, too."""
    tree.make_wheel("torch", "0.0.1", "", needs="nvidia-tiny==1")
    tree.make_wheel("torch", "0.0.1+cpu", "")
    tree.make_wheel("nvidia_tiny", "1", "")
    tree.require("cpu", "tiny==1\ntorch==0.0.1")
    assert tree.run(CUDA_VISIBLE_DEVICES="")[0] == 0
    (tree.folder / "wheels" / "torch-0.0.1+cpu-py3-none-any.whl").unlink()
    make_driver(tmp_path)
    gpu = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    cuda = ".venv/lib/python3.11/site-packages/nvidia_tiny*"
    assert tree.run(DEVICE="cpu", **gpu)[0] == 0
    assert not list(tree.folder.glob(cuda))
    code, out, err = tree.run(**gpu)
    assert (code, out[0]) == (0, "1"), err
    assert list(tree.folder.glob(cuda)), err
    again = tree.run(**gpu)[2], tree.run(CUDA_VISIBLE_DEVICES="")[2]
    assert "Setting up" in err and "Setting up" not in "".join(again)


def test_packages_in_a_no_deps_file_are_installed_without_their_dependencies(tree):
    """NAME.no-deps.txt is installed after NAME.txt, and again after a change."""
    (tree.folder / "requirements" / "cpu.txt").write_text("# nothing\n")
    tree.require("cpu.no-deps", "tiny==1")
    assert tree.run()[1][0] == "1"
    tree.require("cpu.no-deps", "tiny==2")
    assert tree.run()[1][0] == "2"


def test_unknown_environments_and_missing_files_are_named(tree):
    assert "Unknown environment 'gpu'; there are cpu, dev" in tree.run("gpu")[2]
    assert "requirements/awq.txt is missing" in tree.run("awq")[2]
