"""The default weights, built when they are not there.

Owns: when to call scripts/build_weights. Knows nothing of how weights are built; whether they are
the right ones is checked by whoever loads them.

    ensure_weights()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from _environment import ROOT


def ensure_weights() -> None:
    """Build the default weights if a file of the lock is missing; progress on stderr.

    Weights that somebody else provides (WEIGHTS_DIR) are theirs to complete.
    """
    folder = ROOT / "weights" / "honeycomb-nlq"
    if "WEIGHTS_DIR" in os.environ or all((folder / path).exists() for path in _locked_paths()):
        return
    sys.stderr.write("Building the default weights (once, under 5 minutes)\n")
    built = subprocess.run(
        [str(ROOT / "scripts" / "build_weights")], stdout=sys.stderr, stdin=subprocess.DEVNULL
    )
    if built.returncode:
        sys.exit(built.returncode)


def _locked_paths() -> list[str]:
    try:
        lock = json.loads((ROOT / "weights.lock").read_text("utf-8"))
        return [file["path"] for entry in lock["weights"] for file in entry["files"]]
    except (OSError, ValueError, KeyError):
        return []  # the predictor says what is wrong with the lock
