"""Whether there is a GPU, asked of device files and of invented drivers, which are compiled here."""

from __future__ import annotations

import re
import time

import pytest

from serving.devices import gpu_fault, has_cuda_device
from tests.cuda_driver import make_driver

NO_DRIVER = "no-such-driver.so.1"


@pytest.fixture(autouse=True)
def visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_is_found_by_its_device_file(tmp_path):
    (tmp_path / "nvidiactl").touch()
    assert not has_cuda_device(tmp_path, NO_DRIVER)
    (tmp_path / "nvidia0").touch()
    assert has_cuda_device(tmp_path, NO_DRIVER)


def test_a_gpu_without_a_device_file_is_found_by_its_driver(tmp_path):
    """As in some sandboxes and under Windows. Otherwise its kernels would be interpreted, and its torch be for CPUs."""
    driver = make_driver(tmp_path)
    assert has_cuda_device(tmp_path, driver)
    assert gpu_fault((8, 6), driver) is None
    assert gpu_fault((9, 0), driver) == "the GPU has compute capability 8.6, and 9.0 is needed"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_is_hidden_is_not_there(tmp_path, monkeypatch, hidden):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not has_cuda_device(tmp_path, make_driver(tmp_path))


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"init": 803}, r"does not work \(cuInit gives error 803\); nvidia-smi"),
        ({"count": 0}, r"does not work \(it lists none\)"),
        ({"first": "abort()"}, r"does not work \(noise\)"),
        ({"first": "exit(3)"}, r"does not work"),
    ],
)
def test_a_driver_that_fails_even_by_ending_its_process_is_a_reason(tmp_path, driver, reason):
    library = make_driver(tmp_path, **driver)
    assert not has_cuda_device(tmp_path, library)
    assert re.search(reason, gpu_fault((0, 0), library) or "")


def test_a_library_that_is_no_driver_is_a_reason(tmp_path):
    empty = tmp_path / "driver.so.1"
    empty.write_text("")
    assert gpu_fault((0, 0), str(empty)) == f"the GPU's driver is not installed: there is no {empty}"


def test_a_machine_without_a_driver_is_asked_in_no_time(tmp_path):
    begun = time.monotonic()
    assert not has_cuda_device(tmp_path, "another-that-is-not-there.so")
    assert time.monotonic() - begun < 0.05
