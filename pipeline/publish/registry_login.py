"""Whether Cog is logged in to a registry: Docker's own configuration has it, or the keychain that it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SECONDS: Final = 10.0  # a keychain may ask its owner


@dataclass(frozen=True, slots=True)
class Login:
    """Whether there is a login, and where it was found or looked for. It never holds the token."""

    is_there: bool
    where: str


def find_login(registry: str) -> Login:
    """Look where `cog login` puts it (pkg/docker/login.go of Cog 0.23.1). No secret is read from a keychain.

    REPLICATE_API_TOKEN is no login: `cog push` does not read it, and `cog login` refuses tokens of the API.
    """
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    config = _read(path)
    helpers = config.get("credHelpers")
    store = (helpers.get(registry) if isinstance(helpers, dict) else None) or config.get("credsStore")
    if isinstance(store, str) and store:
        found = _in_keychain(store, registry)
        if found is not None:
            return found
    auths = config.get("auths")
    if isinstance(auths, dict) and isinstance(auths.get(registry), dict) and auths[registry]:
        return Login(True, f"Docker's config.json has a login for {registry}")
    also = "; Cog does not push with REPLICATE_API_TOKEN" if "REPLICATE_API_TOKEN" in os.environ else ""
    return Login(False, f"no login for {registry} in Docker's config.json{also}")


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _in_keychain(store: str, registry: str) -> Login | None:
    """The keychain's list of registries, which names no secrets; None where it has no such login."""
    helper = shutil.which(f"docker-credential-{store}")
    if helper is None:
        return None
    try:
        done = subprocess.run([helper, "list"], capture_output=True, timeout=_SECONDS, check=False)
        listed = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    names = {str(name).removeprefix("https://").rstrip("/") for name in listed} if isinstance(listed, dict) else set()
    return Login(True, f"the keychain `{store}` has a login for {registry}") if registry in names else None
