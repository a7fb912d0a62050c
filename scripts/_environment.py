"""Puts the repository on the import path, so that a script can make and enter its environment.

from _environment import ensure
ensure("cpu")  # before any other import of a script
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.environment.enter import ensure, ensure_for_engine
from pipeline.environment.journal import finish_change
from pipeline.paths import ROOT

finish_change(ROOT)  # completes a switch of models that was interrupted

__all__ = ["ROOT", "ensure", "ensure_for_engine"]
