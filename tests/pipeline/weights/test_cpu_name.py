"""The processor's name, also on machines that do not state it."""

from __future__ import annotations

import platform
from pathlib import Path

from pipeline.weights.cpu_name import cpu_name


def test_the_first_model_name_is_that_of_the_machine(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_bytes(b"processor\t: 0\nmodel name\t: A CPU: 3 GHz \xff\nprocessor\t: 1\nmodel name\t: B\n")
    assert cpu_name(info) == "A CPU: 3 GHz \ufffd"


def test_without_a_model_name_it_is_the_architecture(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "none") == platform.machine()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")  # as on ARM
    assert cpu_name(tmp_path / "cpuinfo") == platform.machine()
