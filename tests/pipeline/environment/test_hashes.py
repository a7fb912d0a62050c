"""Each pinned package has its hashes, and the image's list has all of its packages."""

from __future__ import annotations

import json

import pytest

from pipeline.environment import hashes


def test_every_pin_has_hashes_and_the_sbom_lists_every_package_of_the_image():
    """Failing here means that a pin has changed: run scripts/lock_requirements."""
    assert hashes.pins_without_hash() == []
    assert hashes.packages_not_listed() == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "hashes").mkdir()
    monkeypatch.setattr(hashes, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(hashes, "HASHES", tmp_path / "hashes")
    monkeypatch.setattr(hashes, "SBOM", tmp_path / "sbom.json")
    return tmp_path


def test_a_pin_that_has_changed_and_one_without_a_hash_are_found(folder):
    (folder / "a.txt").write_text("one==1.1  # reason\nTwo_x==2\n-r b.txt\n")
    (folder / "b.txt").write_text("three==3\n")
    (folder / "hashes" / "a.txt").write_text("one==1.0 \\\n    --hash=sha256:00\ntwo-x==2\nthree==3 --hash=sha256:00\n")
    (folder / "hashes" / "b.txt").write_text("three==3 --hash=sha256:00\n")
    assert hashes.pins_without_hash() == ["a.txt: one==1.0", "a.txt: one==1.1", "a.txt: two-x==2"]


def test_a_package_that_the_sbom_lacks_is_found(folder):
    (folder / "hashes" / "image.txt").write_text("one==1 --hash=sha256:00\ntwo==2 --hash=sha256:00\n")
    (folder / "sbom.json").write_text(json.dumps({"components": [{"name": "One", "version": "1"}]}))
    assert hashes.packages_not_listed() == ["two==2"]
