"""Versions are listed below their parents, compared by their figures, and taken back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.improve.lineage import comparison, parent_of_used, tree
from pipeline.locking.make_lock import lock_source
from pipeline.package.switch_model import use_weights
from pipeline.package.version import Share, VersionRecord, read_version
from pipeline.paths import ROOT
from pipeline.weights.atomic import write_json
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import write_safetensors
from tests.pipeline.weights.checkpoint_fixtures import Arrays


def record(name: str, parent: str, before: float, after: float) -> VersionRecord:
    figures = {
        "held-out corrections": Share(n=20, before=before, after=after, low=0.05, high=0.4),
        "old examples": Share(n=600, before=0.9, after=0.91, low=-0.01, high=0.03),
    }
    return VersionRecord(
        name=name,
        parent=parent,
        made="2026-11-27T09:00:00Z",
        corrections={"sha256": "0" * 64, "learned": 45, "held_out": 15},
        chosen="mean 0.5",
        figures=figures,
        speed={"current": {"model_passes": 5.0}, "new": {"model_passes": 5.1}},
        lost={"old examples": 3},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("cog.yaml", "weights.lock", "predict.py", ".cog/openapi_schema.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "models", tmp_path / "models")
    for name in ("mine", "mine-2", "mine-3"):
        weights = tmp_path / "weights" / name
        write_safetensors(weights / "model.safetensors", Arrays({}))
        write_json(weights / "task.json", {"task": "chat", "name": name})
        lock_source(str(weights), tmp_path, None, None)
    record("mine-2", "mine", 0.25, 0.5).write(tmp_path / "weights" / "mine-2")
    record("mine-3", "mine-2", 0.5, 0.6).write(tmp_path / "weights" / "mine-3")
    return tmp_path


def test_versions_are_listed_below_their_parents_and_the_one_in_use_is_marked(root: Path) -> None:
    use_weights(root, "mine-2")
    assert list(tree(root)) == [
        "  mine",
        "*   mine-2: 2026-11-27, 45 corrections learned, held-out corrections 25 → 50 %",
        "      mine-3: 2026-11-27, 45 corrections learned, held-out corrections 50 → 60 %",
    ]


def test_figures_stand_side_by_side(root: Path) -> None:
    shown = "\n".join(comparison(root, "mine", "mine-2"))
    assert "| held-out corrections | 25.0 % of 20 | 50.0 % of 20 |" in shown
    assert "- held-out corrections: +25.0 points (+5.0 to +40.0, paired)" in shown
    assert "sets may differ" in "\n".join(comparison(root, "mine", "mine-3"))
    with pytest.raises(CheckpointError, match="other has no figures"):
        list(comparison(root, "other", "mine-2"))


def test_back_goes_to_the_parent_until_there_is_none(root: Path) -> None:
    use_weights(root, "mine-3")
    before = (root / "weights.lock").read_bytes()
    use_weights(root, parent_of_used(root))
    assert parent_of_used(root) == "mine"
    use_weights(root, parent_of_used(root))
    with pytest.raises(CheckpointError, match="mine was not improved from another version"):
        parent_of_used(root)
    use_weights(root, "mine-3")
    assert (root / "weights.lock").read_bytes() == before


def test_a_damaged_record_is_named(root: Path) -> None:
    path = root / "weights" / "mine-2.version.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"mine-2\.version\.json is no record"):
        read_version(root / "weights" / "mine-2")
