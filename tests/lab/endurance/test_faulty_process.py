"""Rows that kill, end or starve a server fail when it has a fault, and pass without one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from lab.endurance.command import ROWS
from lab.endurance.engine_death import engine_death
from lab.endurance.own_weights import lock_text, settings
from lab.endurance.row import QUICK, verdict
from lab.endurance.stage import SLOTS, RunningGateway
from lab.processes import family, running
from pipeline.paths import ROOT
from tests.lab.endurance.faulty_process import PORT, ProcessFaults, arguments

START_SECONDS = 60.0
SHORT_SECONDS = 1.0  # for which a faulty server is watched; one without a fault is, until it has done what it must


class FaultyStage:
    """Lets rows use faulty processes as if they were Cog's and the gateway's."""

    def __init__(self, folder: Path, faults: ProcessFaults) -> None:
        self.faults = faults
        self.written = (folder / "server",)
        self.written[0].mkdir()
        self.weights = folder / "weights"
        self.weights.mkdir()
        save_file({"tensor": np.arange(100)}, self.weights / "model.safetensors")
        (folder / "weights.lock").write_text(lock_text(self.weights))
        self.settings = settings(self.weights, folder / "weights.lock")
        self.open = ExitStack()

    @property
    def server(self) -> SimpleNamespace:
        return self.open.enter_context(self.own_server())

    @contextmanager
    def own_server(self, *, concurrency: int = SLOTS) -> Iterator[SimpleNamespace]:
        port = self.written[0] / PORT
        began = port.stat().st_mtime_ns if port.exists() else 0
        process = subprocess.Popen(arguments(port.parent, concurrency, self.faults), cwd=ROOT)
        processes = family(process.pid)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not port.exists() or port.stat().st_mtime_ns == began:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            processes = family(process.pid)
            yield SimpleNamespace(process=process, url=f"http://127.0.0.1:{port.read_text()}")
        finally:
            for one in running(processes):
                one.kill()
            process.wait()

    plain_server = own_server

    @contextmanager
    def gateway(self, server: SimpleNamespace) -> Iterator[RunningGateway]:
        yield RunningGateway(server.url, server.process.pid)

    def stats(self, server: SimpleNamespace) -> dict[str, Any]:
        return dict(httpx.get(f"{server.url}/stats", timeout=60, trust_env=False).json())


@pytest.mark.parametrize(
    ("name", "faults", "finding"),
    [
        ("death", ProcessFaults(), None),
        ("death", ProcessFaults(always_fails=True), "killed: waiters without an error"),
        ("death", ProcessFaults(stays_ready=True), "killed: ready at last"),
        ("death", ProcessFaults(forgets_waiters=True), "killed: waiters without an error"),
        ("restart", ProcessFaults(), None),
        ("restart", ProcessFaults(always_fails=True), "SIGTERM: predictions in flight that were lost"),
        ("restart", ProcessFaults(drops_predictions=True), "SIGTERM: predictions in flight that were lost"),
        ("restart", ProcessFaults(accepts_at_the_end=True), "SIGTERM: new predictions that were accepted"),
        ("restart", ProcessFaults(exit_code=1), "SIGTERM: exit code"),
        ("restart", ProcessFaults(leaves_its_worker=True), "SIGKILL: processes left"),
        ("restart", ProcessFaults(leaves_half_a_file=True), "SIGKILL: half-written files"),
        ("restart", ProcessFaults(answers_otherwise_later=True), "SIGKILL: answers that changed"),
        ("scarce", ProcessFaults(), None),
        ("scarce", ProcessFaults(always_fails=True), "before: questions without an answer"),
        ("scarce", ProcessFaults(needs_the_disk=True), "full disk: answers that changed or are missing"),
        ("scarce", ProcessFaults(breaks_without_a_disk=True), "full disk: the gateway's answers that are no refusal"),
        ("scarce", ProcessFaults(refuses_for_ever=True), "disk again: what the gateway refuses"),
    ],
)
def test_a_row_fails_for_a_fault_and_passes_without(name, faults, finding, tmp_path):
    row = next(row for row in ROWS if row.name == name)
    amounts = replace(QUICK, watched_seconds=SHORT_SECONDS if finding else START_SECONDS)
    stage = FaultyStage(tmp_path, faults)
    with stage.open:
        result = row.run(stage, amounts)
    assert verdict(result, amounts) == ("failed" if finding else "passed"), result
    assert finding is None or finding in [check.what for check in result.checks if not check.passed], result


@pytest.mark.parametrize(
    ("faults", "finding"),
    [
        (ProcessFaults(), None),
        (ProcessFaults(stays_ready=True), "stopped: ready at last"),
        (ProcessFaults(forgets_waiters=True), "stopped: waiters without an error"),
    ],
)
def test_a_whole_death_also_stops_the_worker_behind_the_gateway(faults, finding, tmp_path):
    amounts = replace(QUICK, watched_seconds=SHORT_SECONDS if finding else START_SECONDS, is_quick=False)
    result = engine_death(FaultyStage(tmp_path, faults), amounts, lambda stage, waiters: "left out")
    assert verdict(result, QUICK) == ("failed" if finding else "passed"), result  # without limits on time
    assert finding is None or finding in [check.what for check in result.checks if not check.passed], result
