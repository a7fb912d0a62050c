"""The number of threads: affinity and container quota, in both versions of cgroups."""

from __future__ import annotations

import os

import pytest

from serving.devices import available_cores

SEEN = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, SEEN),
        ({"cpu.max": "max 100000\n"}, SEEN),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "99900000 100000\n"}, SEEN),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, SEEN),
        ({"cpu/cpu.cfs_quota_us": "90000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "nonsense\n"}, SEEN),
    ],
)
def test_the_smaller_of_affinity_and_quota_counts(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == cores
