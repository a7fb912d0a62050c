"""Pushes a package to Replicate: checks what that needs, one line each, then runs Cog's import and its push."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from pipeline.package.signature import SignatureError, current_schema, read_inputs
from pipeline.publish.errors import PublishError
from pipeline.weights.console import say
from serving.errors import WeightsError
from serving.weights import WeightsLock, verify

_NO_COG: Final = 2  # exit status where Cog is not installed
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
_GET_COG: Final = (
    "cog is not installed here. Cog 0.23.1 is a program beside Docker: `brew install replicate/tap/cog` on a Mac, or "
    "the install script of https://cog.run; then call this again"
)
_TARGET: Final = re.compile(r"r8\.im/[a-z0-9]+(?:[._-][a-z0-9]+)*/[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_REGISTRY: Final = "r8.im"
_COG: Final = "0.23."  # the version that everything here was written for
_SECONDS: Final = 10.0  # a keychain may ask its owner


class State(Enum):
    """How a check ended. A note does not stop a push."""

    OK = "ok"
    NOTE = "note"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found, and what to do about it."""

    state: State
    finding: str
    remedy: str = ""


Check = Callable[[str, Path], Result]


def push_to_replicate(target: str, package: Path, *, dry_run: bool) -> int:
    """Check the package, then `cog weights import` and `cog push`; the exit status.

    The import comes first because `cog push` refuses weights that are not in the target's registry.

    Args:
        target: `r8.im/OWNER/NAME`.
        dry_run: whether to stop after the checks.

    Returns:
        0 if all went well, 1 after a failed check, 2 where Cog is not installed, else Cog's own status.

    Raises:
        PublishError: the target has another form.
    """
    if not _TARGET.fullmatch(target):
        raise PublishError(f"{target}: give r8.im/OWNER/NAME in small letters, without a tag")
    failed = [name for name, check in _CHECKS.items() if not _reported(name, check, target, package)]
    if failed:
        say(f"{len(failed)} of {len(_CHECKS)} checks failed; nothing was pushed")
        return 1
    commands = [["cog", "weights", "import"], ["cog", "push", target]]
    variables = {"COG_MODEL": target, "COG_OPENAPI_SCHEMA": str(_SCHEMA)}
    if dry_run:
        for command in commands:
            print(" ".join([*(f"{name}={value}" for name, value in variables.items()), *command]))
        return 0
    if shutil.which("cog") is None:
        say(_GET_COG)
        return _NO_COG
    for command in commands:
        say(f"Running {' '.join(command)}")
        code = subprocess.run(command, cwd=package, env=os.environ | variables, check=False).returncode
        if code:
            say(f"`{' '.join(command)}` ended with status {code}; its own message is above")
            return code
    return 0


def _reported(name: str, check: Check, target: str, package: Path) -> bool:
    """Print a check's line; whether it did not fail."""
    result = check(target, package)
    sys.stdout.write(f"{result.state.value:<7} {name}: {result.finding}\n")
    if result.remedy:
        sys.stdout.write(f"        remedy: {result.remedy}\n")
    sys.stdout.flush()
    return result.state is not State.FAILED


def _image(target: str, package: Path) -> Result:
    config = _cog_yaml(package)
    key = "model" if config.get("weights") else "image"
    named = config.get("model") or config.get("image")
    remedy = f"set `{key}: {target}` in cog.yaml"
    if config.get("weights") and config.get("image"):
        return Result(State.FAILED, "cog.yaml has `image` and `weights`, which Cog does not take together", remedy)
    if named != target:
        return Result(State.FAILED, f"cog.yaml has `{key}: {named}`, not {target}", remedy)
    return Result(State.OK, f"cog.yaml pushes to {target}")


def _weights(target: str, package: Path) -> Result:
    stanzas = {str(stanza.get("name")): stanza for stanza in _cog_yaml(package).get("weights") or ()}
    if not stanzas:
        return Result(State.FAILED, "cog.yaml has no `weights`", "add name, target and source, and lock them")
    lock = package / "weights.lock"
    remedy = "put the weights there that the lock names, or run scripts/lock_weights if the change was meant"
    try:
        entries = {entry.name: entry for entry in WeightsLock.load(lock).weights}
        if entries.keys() != stanzas.keys():
            names = f"{', '.join(stanzas)}; weights.lock has {', '.join(entries)}"
            return Result(State.FAILED, f"cog.yaml names {names}", "run scripts/lock_weights")
        for name, stanza in stanzas.items():
            if stanza.get("target") != entries[name].target:
                return Result(State.FAILED, f"{name}: cog.yaml and weights.lock differ in target", "lock them again")
            verify(_folder(package, stanza), lock)
    except WeightsError as error:
        return Result(State.FAILED, str(error), remedy)
    digests = ", ".join(f"{name} {entry.set_digest[:19]}…" for name, entry in entries.items())
    return Result(State.OK, f"locked, and the same on disk: {digests}")


def _signature(target: str, package: Path) -> Result:
    try:
        inputs = read_inputs((package / "predict.py").read_text("utf-8"), "Predictor")
    except (OSError, SignatureError, SyntaxError) as error:
        return Result(State.FAILED, str(error), "write each input as one plain Input(…), as Cog reads it")
    return Result(State.OK, f"Cog reads {len(inputs['properties'])} inputs from predict.py")


def _schema(target: str, package: Path) -> Result:
    remedy = "run scripts/write_schema"
    try:
        path, text = current_schema(package)
        if path.read_text("utf-8") != text:
            return Result(State.FAILED, f"{path.name} is not what predict.py says now", remedy)
    except (OSError, ValueError, SignatureError, SyntaxError) as error:
        return Result(State.FAILED, f"the OpenAPI schema cannot be made: {error}", f"mend predict.py, then {remedy}")
    return Result(State.OK, "the OpenAPI schema is that of predict.py")


def _login(target: str, package: Path) -> Result:
    """Look for a login where `cog login` puts it (pkg/docker/login.go of Cog 0.23.1), without reading a secret.

    REPLICATE_API_TOKEN is no login: `cog push` does not read it, and `cog login` refuses tokens of the API.
    """
    config = _docker_config()
    helpers = config.get("credHelpers")
    store = (helpers.get(_REGISTRY) if isinstance(helpers, dict) else None) or config.get("credsStore")
    if isinstance(store, str) and store and _is_in_keychain(store):
        return Result(State.OK, f"the keychain `{store}` has a login for {_REGISTRY}")
    auths = config.get("auths")
    if isinstance(auths, dict) and isinstance(auths.get(_REGISTRY), dict) and auths[_REGISTRY]:
        return Result(State.OK, f"Docker's config.json has a login for {_REGISTRY}")
    also = "; Cog does not push with REPLICATE_API_TOKEN" if "REPLICATE_API_TOKEN" in os.environ else ""
    remedy = "run `cog login`, with the token of https://replicate.com/auth/token"
    return Result(State.FAILED, f"no login for {_REGISTRY} in Docker's config.json{also}", remedy)


def _docker_config() -> dict[str, Any]:
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _is_in_keychain(store: str) -> bool:
    """Whether the keychain's list of registries, which names no secrets, has the registry."""
    helper = shutil.which(f"docker-credential-{store}")
    if helper is None:
        return False
    try:
        done = subprocess.run([helper, "list"], capture_output=True, timeout=_SECONDS, check=False)
        listed = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return isinstance(listed, dict) and _REGISTRY in {str(n).removeprefix("https://").rstrip("/") for n in listed}


def _size(target: str, package: Path) -> Result:
    try:
        weights = sum(entry.size for entry in WeightsLock.load(package / "weights.lock").weights)
    except WeightsError as error:
        return Result(State.FAILED, str(error), "run scripts/lock_weights")
    folders = (package / "serving", package / "tasks")
    code = sum(path.stat().st_size for top in folders for path in top.rglob("*") if path.suffix == ".py")
    return Result(
        State.NOTE,
        f"weights {weights / 1e9:.3f} GB, pushed beside the image; code {code / 1e6:.2f} MB. What CUDA and the "
        "requirements add to the image is not estimated here, and no limit of Replicate is known to this package",
    )


def _git(target: str, package: Path) -> Result:
    command = ["git", "-C", str(package), "status", "--porcelain", "--untracked-files=normal", "--", "."]
    if shutil.which("git") is None:
        return Result(State.NOTE, "git is not installed, so no commit says what is pushed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Result(State.NOTE, "no git repository, so no commit says what is pushed", "git init, and commit")
    changed = done.stdout.splitlines()
    if changed:
        return Result(State.NOTE, f"{len(changed)} files differ from the last commit", "commit what you push")
    return Result(State.OK, "all is committed")


def _tools(target: str, package: Path) -> Result:
    if shutil.which("cog") is None:
        return Result(State.NOTE, "cog is not installed", "see https://cog.run; it needs Docker")
    done = subprocess.run(["cog", "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\d+\.\d+\.\d+\S*", done.stdout + done.stderr)
    if version is None or not version[0].startswith(_COG):
        found = version[0] if version else "of an unknown version"
        return Result(State.FAILED, f"cog is {found}", f"install Cog {_COG}1, which this package was written for")
    if shutil.which("docker") is None:
        return Result(State.FAILED, "docker is not installed, which cog builds with", "install Docker and Buildx")
    return Result(State.OK, f"cog {version[0]}, and docker")


_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "destination": _image,
        "weights": _weights,
        "signature": _signature,
        "schema": _schema,
        "login": _login,
        "size": _size,
        "git": _git,
        "tools": _tools,
    }
)


def _cog_yaml(package: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load((package / "cog.yaml").read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PublishError(f"{package / 'cog.yaml'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise PublishError(f"{package / 'cog.yaml'} holds no keys; see docs/yaml.md of Cog")
    return config


def _folder(package: Path, stanza: dict[str, Any]) -> Path:
    source = stanza.get("source")
    uri = str(source.get("uri", "")) if isinstance(source, dict) else ""
    name = uri.removeprefix("file://").removeprefix("./").rstrip("/")
    return package / name if name and "://" not in name else package / "weights" / str(stanza.get("name"))
