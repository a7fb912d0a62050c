"""A real Cog server whose fake engine repeats the question, slowly."""

from __future__ import annotations

from pathlib import Path

from lab.endurance.cog_process import CogServer
from tasks.confidence import Calibration, calibration_path
from tests.cog.control import CONTROLLED
from tests.cog.tiny_weights import make_tiny_weights

CONCURRENCY = 16
# The fake engine is not sure of texts, where a grammar allows most tokens.
CALIBRATION = Calibration(answers=9, fields=20, points=((0.75, 0.625, 10), (0.8, 0.95, 10)))
SLOW = "why is a very long question slow"  # half a second of answer
SLOWER = "why is " + "a very long question " * 10 + "slow"  # about two seconds of answer
SLOWEST = "why is " + "a very long question " * 90 + "slow"  # longer than any test looks at it


def start_cog(folder: Path, concurrency: int = CONCURRENCY, step_seconds: float = 0.01) -> CogServer:
    """A server whose answers are as long as the question, ten milliseconds for each token."""
    calibration_path(folder / "tiny").write_text(CALIBRATION.model_dump_json())
    env = make_tiny_weights(folder) | {
        "ENGINE": "fake",
        "TOKEN_TRACE": "1",
        "CONFIDENCE": "1",
        "CONTROL": str(folder),
        "MAX_NUM_SEQS": str(concurrency),
        "STEP_SECONDS": str(step_seconds),
    }
    return CogServer(CONTROLLED, env=env, log=folder / "cog.log", concurrency=concurrency)
