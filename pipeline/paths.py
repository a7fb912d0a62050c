"""Where this project's code lies on disk, and the folder that it works in.

Standard library only, because it is read before there is an environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CODE: Final = Path(__file__).resolve().parents[1]
# A checkout works in itself. A package's code is unpacked from its wheel, and package.py says where the package is.
ROOT: Final = CODE if (CODE / "cog.yaml").exists() else Path(os.environ.get("PACKAGE_FOLDER", CODE))
ENVIRONMENT: Final = {"PYTHONPATH": str(CODE), "PACKAGE_FOLDER": str(ROOT)}  # in which other programs find both
WEIGHTS_LOCK: Final = ROOT / "weights.lock"
