"""Kills vLLM's worker while predictions wait for it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any, Final

import psutil

from lab.endurance.client import Answer, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.observed_predict import OBSERVED
from lab.endurance.own_weights import lock_text, settings
from lab.endurance.row import Check
from lab.endurance.stage import SMALL, Stage
from lab.endurance.workload import marked
from lab.processes import family
from pipeline.paths import ROOT
from serving.devices import has_cuda_device

_SETUP_SECONDS: Final = 900.0
_PYTHON: Final = ROOT / ".venv-vllm" / "bin" / "python"
_UNQUANTIZED: Final = ROOT / "weights" / f"{SMALL}-unquantized"  # scripts/test --vllm makes it
_TITLE: Final = "VLLM::"


def vllm_checks(stage: Stage, waiters: int) -> list[Check] | str:
    """The figures, or why there are none."""
    if not _PYTHON.exists():
        return "left out: scripts/test --vllm makes its environment"
    if (weights := _weights(stage)) is None:
        return "left out: scripts/test --vllm makes the weights that it needs on this machine"
    stage.close()
    folder = stage.subfolder("vllm")
    env = {
        "ENGINE": "vllm",
        **_locked(weights, folder),
        OBSERVED: str(folder),
        "MAX_NUM_SEQS": str(waiters),
        "MAX_MODEL_LEN": "1024",
        "DTYPE": "bfloat16",
        "PYTHONPATH": str(ROOT),
    }
    with CogServer(
        "lab/endurance/observed_predict.py:ObservedPredictor",
        env=env,
        log=folder / "server.log",
        setup_seconds=_SETUP_SECONDS,
        python=_PYTHON,
    ) as server:
        return asyncio.run(_killed(server, waiters))


def _weights(stage: Stage) -> Path | None:
    """Those that vLLM can compute here: its CPU build reads AWQ with AVX512 only."""
    if has_cuda_device() or "avx512" in Path("/proc/cpuinfo").read_text("utf-8"):
        return stage.weights
    return _UNQUANTIZED if _UNQUANTIZED.is_dir() else None


def _locked(weights: Path, folder: Path) -> dict[str, str]:
    lock = folder / "weights.lock"
    lock.write_text(lock_text(weights), "utf-8")
    return settings(weights, lock)


async def _killed(server: CogServer, waiters: int) -> list[Check]:
    async with opened(server.url) as client:
        begun, ended = asyncio.Event(), dict[int, float]()

        async def wait(number: int) -> Answer:
            begun.set()
            answer = await client.stream(f"doomed-{number}", marked(number))
            ended[number] = time.monotonic()
            return answer

        tasks = [asyncio.create_task(wait(number)) for number in range(waiters)]
        await begun.wait()
        await asyncio.sleep(0.2)
        in_flight = [number for number in range(waiters) if number not in ended]
        gone = _kill_worker(server.process.pid)
        health = await asyncio.to_thread(_seconds_until_unhealthy, server, gone)
        await asyncio.wait(tasks, timeout=20)
        for task in tasks:
            task.cancel()
    late = [ended.get(number, float("inf")) - gone for number in in_flight]
    done = [tasks[number].result().status for number in in_flight if number in ended]
    unanswered = len(in_flight) - sum(status in ("failed", "broken") for status in done)
    return [
        Check("vLLM's worker killed: waiters without an error", unanswered if in_flight else float("nan"), 0),
        Check("vLLM's worker killed: not ready", health, 5, "s", is_time=True),
        Check("vLLM's worker killed: last waiter's error", max(late, default=0.0), 10, "s", is_time=True),
    ]


def _kill_worker(pid: int) -> float:
    """Kill the process that computes; when that was. With one device, vLLM has no worker beside its engine core."""
    titles: dict[str, psutil.Process] = {" ".join(one.cmdline()): one for one in family(pid)}
    ours = {title: one for title, one in titles.items() if _TITLE in title}
    process: Any = next((one for title, one in ours.items() if "Worker" in title), next(iter(ours.values())))
    process.send_signal(signal.SIGKILL)
    return time.monotonic()


def _seconds_until_unhealthy(server: CogServer, gone: float) -> float:
    server.wait_for("UNHEALTHY", 20)
    return time.monotonic() - gone
