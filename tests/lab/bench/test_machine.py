"""A result describes its machine, whatever that machine lacks."""

from __future__ import annotations

import os
import re

import pytest

from lab.bench import machine


def test_this_machine_is_described():
    found = machine.describe_machine()
    assert found["cpu"] and found["cores"] >= 1 and found["memory_gib"] > 0.1 and len(found["load_at_start"]) == 3
    assert re.match(r"\d+\.\d+", found["versions"]["torch"])


def test_a_machine_without_proc_and_with_fewer_packages_is_described(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PACKAGES", ("torch", "a-package-that-nobody-has"))
    found = machine.describe_machine(tmp_path)
    assert found["cpu"] == os.uname().machine
    assert (found["flags"], found["memory_gib"], found["versions"]["a-package-that-nobody-has"]) == ([], None, None)
    assert found["versions"]["torch"] is not None


@pytest.mark.parametrize("has_git", [False, True])
def test_a_folder_that_is_no_checkout_and_a_machine_without_git_have_no_commit(tmp_path, monkeypatch, has_git):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.describe_checkout(tmp_path) == {"commit": None, "changed_files": None}
