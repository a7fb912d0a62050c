"""Where this package lies on disk. Standard library only, because it is read before there is an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WEIGHTS_LOCK: Final = ROOT / "weights.lock"
