"""Run an engine in its own process, which can be paused."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.bench.protocol import Batch, Done
from pipeline.paths import ROOT

START_SECONDS = 400.0  # vLLM, compiled, on two cores
END_SECONDS = 5.0  # for an engine to end by itself
LOG_LINES = 12


class EngineFailedError(Exception):
    """The engine did not start, died or hangs; the message has the end of its output."""


class EngineProcess:
    """A worker and the processes that it starts, in one session, so that all can be paused."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        with log.open("w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,  # Ctrl-C goes to the harness, which ends all processes
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            message = self._receive("ready", START_SECONDS)
        except BaseException:  # including Ctrl-C: no other code knows of this process yet
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - begun
        self.versions: dict[str, str] = message["versions"]

    def run(self, batch: Batch, timeout: float) -> Done:
        """Run a batch and return its replies.

        Raises:
            EngineFailedError: it died or took too long.
        """
        assert self._process.stdin is not None  # PIPE above
        try:
            self._process.stdin.write(batch.to_line() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineFailedError(self._how_it_ended()) from error
        return Done.from_json(self._receive("done", timeout))

    def pause(self) -> None:
        """Pause all processes, because an idle engine may use the CPU."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all processes."""
        self._signal(signal.SIGCONT)

    def memory_mb(self) -> dict[str, float]:
        """Resident memory of all processes in MB; PSS counts shared pages once, RSS in every process."""
        total = {"rss_mb": 0.0, "pss_mb": 0.0}
        for pid in _session(self._process.pid):
            with contextlib.suppress(OSError):  # ended meanwhile
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines():
                    name, _, rest = line.partition(":")
                    if (key := f"{name.lower()}_mb") in total:
                        total[key] += int(rest.split()[0]) / 1024
        return {key: round(value, 1) for key, value in total.items()}

    def close(self) -> None:
        """End all processes. May be called twice."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self.resume()
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        self._signal(signal.SIGKILL)  # processes that the worker has left
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None  # PIPE above
        self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None  # PIPE above
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _receive(self, event: str, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty as error:
            message = f"no answer within {timeout:.0f} s: {self._last_output()}"
            raise EngineFailedError(message) from error
        if line is None:
            raise EngineFailedError(self._how_it_ended())
        received: dict[str, Any] = json.loads(line)
        if received["event"] != event:
            raise EngineFailedError(received.get("error", f"unexpected event {received['event']!r}"))
        return received

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # it closed its output, and may need a moment more
        code = self._process.poll()
        how = "closed its output" if code is None else f"ended with {code}" if code >= 0 else f"died of signal {-code}"
        return f"the engine's process {how}: {self._last_output()}"

    def _last_output(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])
        return ""


def _session(leader: int) -> Iterator[int]:
    """The processes of a session, including its leader."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # After the name in brackets, which may contain anything: state, parent, group, session.
                fields = (entry / "stat").read_text("utf-8").rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    yield int(entry.name)
