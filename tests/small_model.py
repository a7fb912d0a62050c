"""The real model that tests use: the smallest recipe's, whatever the default model is. scripts/test builds it."""

from __future__ import annotations

from typing import Final

import pytest

from pipeline.paths import ROOT
from pipeline.weights.recipes import find_recipe

RECIPE: Final = find_recipe(ROOT, "honeycomb-nlq-small")
WEIGHTS: Final = RECIPE.weights(ROOT)
LOCK: Final = RECIPE.lock(ROOT)
ADAPTER: Final = RECIPE.folder
BASE: Final = ROOT / "weights" / RECIPE.base.name  # unquantized
UNQUANTIZED: Final = ROOT / "weights" / f"{RECIPE.name}-unquantized"  # scripts/test --vllm makes it
SETTINGS: Final = {"WEIGHTS_DIR": str(WEIGHTS), "WEIGHTS_LOCK": str(LOCK)}  # of a server that a test starts
BUILD: Final = f"scripts/build_weights {RECIPE.name}"
NEEDS_WEIGHTS: Final = pytest.mark.skipif(
    not (WEIGHTS / "model.safetensors").is_file(), reason=f"{BUILD} makes the weights"
)
