"""Checks the pins of packages, the list of the image's packages, and that no code comes from data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from pipeline.environment.hashes import REQUIREMENTS, packages_not_listed, pins_without_hash
from pipeline.paths import ROOT

_BANNED: Final = "tests/architecture/test_banned.py"  # parses all files of the product


def supply_chain(stage: Stage, amounts: Amounts, requirements: Path = REQUIREMENTS) -> Result:
    """Read files only, which scripts/dev/lock_requirements writes. Advisories would need the network."""
    unhashed, unlisted = pins_without_hash(requirements), packages_not_listed(requirements)
    checks = [
        Check("pins without a hash, hashes without a pin, or no pins", len(unhashed), 0),
        Check("packages of the image that the SBOM lacks", len(unlisted), 0),
    ]
    if not amounts.is_quick:  # a quick run is itself a test, beside this one
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _BANNED]
        banned = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        checks.append(Check("exit code of the test for pickles and code of models", banned.returncode, 0))
    return Result(checks=tuple(checks), losses=(*unhashed[:5], *unlisted[:5]))
