"""What people's commands say while they download, and their errors."""

from __future__ import annotations

from typing import Final

from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from serving.fetching.retry import Watch

CONSOLE: Final = Watch(
    error=lambda where, why: CheckpointError(f"{where}: {why}"),
    say=say,
    remedy="run this again later, it continues where it stopped",
)
