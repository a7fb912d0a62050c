"""A second real model, which tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.paths import ROOT
from pipeline.weights.build_from_sources import build_base


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, untuned, in four bits and with its chat template."""
    folder = tmp_path_factory.mktemp("smollm2") / "smollm2"
    build_base("smollm2-135m-instruct", folder, ROOT / "weights" / ".cache")
    return folder
