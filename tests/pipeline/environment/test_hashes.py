"""Each pinned package has its hashes, and the image's list has all of its packages."""

from __future__ import annotations

import json
import shutil

import pytest

from pipeline.environment import hashes


def test_every_pin_has_hashes_and_the_sbom_lists_every_package_of_the_image():
    """Failing here means that a pin has changed: run scripts/dev/lock_requirements."""
    assert hashes.pins_without_hash() == []
    assert hashes.packages_not_listed() == []


def test_a_pin_that_has_changed_one_without_a_hash_and_what_is_no_pin_are_found(tmp_path):
    (tmp_path / "hashes").mkdir()
    (tmp_path / "a.txt").write_text("one==1.1  # reason\nTwo_x==2\n-r b.txt\n\n# why\nfour>=4\n")
    (tmp_path / "b.txt").write_text("three==3\n")
    (tmp_path / "hashes" / "a.txt").write_text(
        "one==1.0 \\\n    --hash=sha256:00\ntwo-x==2\nthree==3 --hash=sha256:00\n"
    )
    (tmp_path / "hashes" / "b.txt").write_text("three==3 --hash=sha256:00\n")
    found = ["a.txt: one==1.0", "a.txt: one==1.1", "a.txt: two-x==2", "a.txt: four>=4"]
    assert hashes.pins_without_hash(tmp_path) == found


def test_a_package_that_the_sbom_lacks_is_found(tmp_path):
    (tmp_path / "hashes").mkdir()
    (tmp_path / "hashes" / "image.txt").write_text("one==1 --hash=sha256:00\ntwo==2 --hash=sha256:00\n")
    (tmp_path / "image.cdx.json").write_text(json.dumps({"components": [{"name": "One", "version": "1"}]}))
    assert hashes.packages_not_listed(tmp_path) == ["two==2"]


@pytest.mark.parametrize(
    ("file", "text", "instead"),
    [
        ("cpu.txt", "\njsonschema==", "\nnot-hashed==1.0\njsonschema=="),
        ("cpu.txt", "\njsonschema==", "\njsonschema>="),
        ("cpu.txt", "\njsonschema==", "\njsonschema[format]=="),
        ("hashes/image.txt", "\njsonschema==", "\nnot-in-the-sbom==1.0 --hash=sha256:00\njsonschema=="),
        ("hashes/cpu.txt", "--hash=sha256:", "--hash=md5:"),
    ],
)
def test_a_fault_in_this_project_s_own_files_is_found(tmp_path, file, text, instead):
    folder = shutil.copytree(hashes.REQUIREMENTS, tmp_path / "requirements")
    content = (folder / file).read_text()
    assert text in content
    (folder / file).write_text(content.replace(text, instead))
    assert hashes.pins_without_hash(folder) or hashes.packages_not_listed(folder)
