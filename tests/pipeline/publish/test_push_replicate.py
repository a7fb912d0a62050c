"""scripts/push --replicate: each check finds its error, and Cog's commands are called in the right order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.package.new_package import new_package
from pipeline.package.task_choice import TaskChoice
from pipeline.publish.errors import PublishError
from pipeline.publish.replicate import push_to_replicate
from tests.pipeline.package.checkpoints import HONEYCOMB, make_checkpoint

ROOT = Path(__file__).resolve().parents[3]
TARGET = "r8.im/me/mine"
COG = """#!/bin/sh
if [ "$1" = --version ]; then echo "cog version ${COG_VERSION:-0.23.1} (built 2026)"; exit 0; fi
echo "$* | $COG_MODEL | $COG_OPENAPI_SCHEMA | $(pwd)" >> "$CALLS"
[ "$1" = "$FAILING" ] && exit 7
exit 0
"""
KEYCHAIN = """#!/bin/sh
[ "$1" = list ] && echo '{"https://r8.im": "me"}' && exit 0
echo "asked for a secret" >> "$CALLS"; exit 1
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as scripts/new_package makes it, with the destination set and everything committed."""
    root = tmp_path_factory.mktemp("push")
    new_package(root / "mine", make_checkpoint(root / "checkpoint", task_file=HONEYCOMB), TaskChoice())
    config = root / "mine" / "cog.yaml"
    config.write_text(config.read_text().replace("r8.im/your-name/mine", TARGET))
    return root / "mine"


@pytest.fixture
def package(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with a fake cog and docker on the path and a login."""
    folder = Path(shutil.copytree(made, tmp_path / "mine"))
    identity = ["-c", "user.name=Me", "-c", "user.email=me@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "mine"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    tools = tmp_path / "tools"
    for name, text in {"cog": COG, "docker": "#!/bin/sh\n", "docker-credential-fake": KEYCHAIN}.items():
        tool(tools / name, text)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REPLICATE_API_TOKEN", raising=False)
    docker_config(tmp_path, {"auths": {"r8.im": {"auth": "c2VjcmV0LXRva2Vu"}}})
    return folder


def tool(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def docker_config(root: Path, value: object) -> None:
    (root / "docker").mkdir(exist_ok=True)
    (root / "docker" / "config.json").write_text(json.dumps(value))


def calls(package: Path) -> list[str]:
    path = package.parent / "calls"
    return path.read_text().splitlines() if path.exists() else []


def push(package: Path, capsys: pytest.CaptureFixture[str], *, dry_run: bool = False) -> tuple[int, str]:
    """The exit status and all that is printed, which holds no secret."""
    code = push_to_replicate(TARGET, package, dry_run=dry_run)
    captured = capsys.readouterr()
    output = captured.out + captured.err
    assert "c2VjcmV0" not in output and "secret" not in output
    return code, output


def test_weights_are_imported_before_the_push(package, capsys):
    """Cog 0.23.1 refuses to push a bundle whose weights are not in the target's registry."""
    code, output = push(package, capsys)
    assert code == 0, output
    assert "failed" not in output
    assert [line.split()[0] for line in output.splitlines()[:8]] == ["ok"] * 5 + ["note"] + ["ok"] * 2
    where = f"{TARGET} | .cog/openapi_schema.json | {package}"
    assert calls(package) == [f"weights import | {where}", f"push {TARGET} | {where}"]


def test_a_dry_run_only_checks(package, capsys):
    code, output = push(package, capsys, dry_run=True)
    assert code == 0
    assert f"COG_MODEL={TARGET} COG_OPENAPI_SCHEMA=.cog/openapi_schema.json cog weights import" in output
    assert f"cog push {TARGET}" in output
    assert calls(package) == []


@pytest.mark.parametrize("failing", ["weights", "push"])
def test_cog_s_errors_are_passed_on(package, capsys, monkeypatch, failing):
    monkeypatch.setenv("FAILING", failing)
    code, output = push(package, capsys)
    assert (code, "ended with status 7" in output) == (7, True)
    assert len(calls(package)) == (1 if failing == "weights" else 2)


def test_without_cog_the_error_says_how_to_install_it(package, capsys):
    (package.parent / "tools" / "cog").unlink()
    code, output = push(package, capsys)
    assert code == 2
    assert "cog is not installed here" in output and "https://cog.run" in output
    assert push(package, capsys, dry_run=True)[0] == 0


def edit(package: Path, name: str, old: str, new: str) -> None:
    path = package / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "remedy"),
    [
        ("cog.yaml", TARGET, "r8.im/other/mine", "destination: cog.yaml has `model: r8.im/ot", f"`model: {TARGET}`"),
        ("cog.yaml", f"model: {TARGET}", f"image: {TARGET}", "has `image` and `weights`", f"`model: {TARGET}`"),
        ("cog.yaml", "- name: mine", "- name: yours", "weights: cog.yaml names yours", "scripts/lock_weights"),
        ("cog.yaml", "target: /src", "target: /srv", "weights: mine: cog.yaml and weights.lock", "lock them again"),
        ("weights/mine/task.json", "json", "text", "altered: task.json", "scripts/lock_weights"),
        ("predict.py", "description=", "ge=5 * 5, description=", "signature: predict.py line", "plain Input("),
        ("predict.py", "description=\"", "description=\"New: ", "openapi_schema.json is not", "scripts/write_schema"),
    ],
)  # fmt: skip
def test_each_check_finds_its_error(package, capsys, name, old, new, line, remedy):
    edit(package, name, old, new)
    code, output = push(package, capsys)
    assert code == 1
    assert line in output
    assert remedy in output
    assert "nothing was pushed" in output
    assert calls(package) == []


def test_logins_are_found_where_cog_stores_them(package, capsys, monkeypatch):
    docker_config(package.parent, {"credsStore": "fake"})
    code, output = push(package, capsys)
    assert (code, "the keychain `fake` has a login for r8.im" in output) == (0, True)
    assert not [call for call in calls(package) if call == "asked for a secret"]
    docker_config(package.parent, {"auths": {"ghcr.io": {"auth": "x"}}})
    monkeypatch.setenv("REPLICATE_API_TOKEN", "r8_secret")
    code, output = push(package, capsys)
    assert code == 1
    assert "no login for r8.im in Docker's config.json; Cog does not push with REPLICATE_API_TOKEN" in output
    assert "run `cog login`" in output
    shutil.rmtree(package.parent / "docker")
    assert push(package, capsys)[0] == 1


def test_cog_must_have_the_tested_version(package, capsys, monkeypatch):
    monkeypatch.setenv("COG_VERSION", "0.16.0")
    code, output = push(package, capsys)
    assert (code, "failed  tools: cog is 0.16.0" in output) == (1, True)


def test_uncommitted_changes_are_a_warning(package, capsys):
    (package / "notes.txt").write_text("mine")
    code, output = push(package, capsys)
    assert (code, "note    git: 1 files differ from the last commit" in output) == (0, True)
    shutil.rmtree(package / ".git")
    code, output = push(package, capsys)
    assert (code, "no git repository" in output) == (0, True)


@pytest.mark.parametrize("target", ["me/mine", "r8.im/mine", "r8.im/me/mine:v1", "r8.im/Me/mine", "ghcr.io/me/mine"])
def test_invalid_targets_are_refused(package, target):
    with pytest.raises(PublishError, match=r"give r8\.im/OWNER/NAME"):
        push_to_replicate(target, package, dry_run=True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "give hf://ORG/NAME and --weights FOLDER"),
        (["hf://org/name"], "give hf://ORG/NAME and --weights FOLDER"),
        (["--replicate", TARGET, "--public"], "give only --dry-run with it"),
        (["hf://org/name@v1", "--weights", str(ROOT / "docs")], "without a revision"),
        (["docs", "--weights", str(ROOT / "docs")], "give hf://ORG/NAME"),
    ],
)
def test_conflicting_options_are_refused(words, named):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "push"), *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert named in " ".join(done.stderr.split())
