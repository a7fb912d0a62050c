"""Whether the disk has room for what the next steps write."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from pipeline.prepare.errors import RoadError
from pipeline.prepare.road_step import Step

MARGIN = 256 << 20  # bytes that stay free


def check_space(folder: Path, steps: Iterable[Step]) -> None:
    """Check before the steps run. What a step has written already is not needed again.

    Raises:
        RoadError: the disk is too small.
    """
    missing = {step.name: space for step in steps if (space := step.space - sum(map(_size, step.writes))) > 0}
    free = shutil.disk_usage(folder).free
    if missing and (total := sum(missing.values())) + MARGIN > free:
        listed = ", ".join(f"{name} {space:,}" for name, space in missing.items())
        raise RoadError(
            f"about {total:,} bytes will be written below {folder.parent} ({listed}), {MARGIN:,} should stay free, and "
            f"{free:,} are free there; make room, or give an --out on another disk"
        )


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
