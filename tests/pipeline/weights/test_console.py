"""A disk that takes no more is a message and an exit code, in every command."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from safetensors import SafetensorError

from pipeline.paths import ROOT
from pipeline.weights.console import report_errors


def test_a_full_disk_and_a_folder_that_may_not_be_written_say_what_to_do(tmp_path: Path, capsys) -> None:
    for number, what in (
        (errno.ENOSPC, "No space left on device; make room"),
        (errno.EROFS, "Read-only file system; give a folder that you may write to"),
        (errno.EACCES, "Permission denied; give a folder that you may write to"),
    ):
        with pytest.raises(typer.Exit) as exited, report_errors():
            raise OSError(number, "", str(tmp_path))
        assert exited.value.exit_code == 1
        assert f"{tmp_path}: {what}" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(typer.Exit), report_errors():
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(typer.Exit), report_errors():
        (tmp_path / "none").read_text()
    with pytest.raises(ConnectionResetError), report_errors():
        raise ConnectionResetError(errno.ECONNRESET, "not about a file")


def test_a_command_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 8)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/fetch", tmp_path, "/proc/out"], capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
