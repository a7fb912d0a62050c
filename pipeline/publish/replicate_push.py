"""Checks what a push to Replicate needs, one line each, and runs Cog's import of the weights and its push."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from pipeline.publish.replicate_checks import CHECKS, Check, check_target
from pipeline.weights.console import say

NO_COG: Final = 2  # exit status where Cog is not installed
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
_GET_COG: Final = (
    "cog is not installed here. Cog 0.23.1 is a program beside Docker: `brew install replicate/tap/cog` on a Mac, or "
    "the install script of https://cog.run; then call this again"
)


def push_to_replicate(target: str, package: Path, *, dry_run: bool) -> int:
    """Check the package, then `cog weights import` and `cog push`; the exit status.

    The import comes first because `cog push` refuses weights that are not in the target's registry.

    Args:
        target: `r8.im/OWNER/NAME`.
        package: its folder.
        dry_run: whether to stop after the checks.

    Returns:
        0 if all went well, 1 after a failed check, 2 where Cog is not installed, else Cog's own status.

    Raises:
        PublishError: the target has another form.
    """
    check_target(target)
    failed = [name for name, check in CHECKS.items() if not _reported(name, check, target, package)]
    if failed:
        say(f"{len(failed)} of {len(CHECKS)} checks failed; nothing was pushed")
        return 1
    commands = [["cog", "weights", "import"], ["cog", "push", target]]
    variables = {"COG_MODEL": target, "COG_OPENAPI_SCHEMA": str(_SCHEMA)}
    if dry_run:
        for command in commands:
            print(" ".join([*(f"{name}={value}" for name, value in variables.items()), *command]))
        return 0
    if shutil.which("cog") is None:
        say(_GET_COG)
        return NO_COG
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
    return not result.is_failed
