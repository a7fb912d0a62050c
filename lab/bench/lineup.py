"""The engines of one run, each in a process of its own, which is paused while another one is measured."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from lab.bench.asker import Asker, Inputs
from lab.bench.peers import LLAMA, EnvironmentFailedError, NoSuchFormError, Peer, WeightForms, python_of
from lab.bench.protocol import BATCH, DONE, Batch, Done
from lab.processes import memory_mb
from pipeline.paths import ROOT

START_SECONDS = 400.0  # vLLM, compiled, on two cores
END_SECONDS = 5.0  # for an engine to end by itself
BATCH_SECONDS = 1800.0
WARM_UP_TOKENS = 32
LOG_LINES = 12
NOT_PREPARED = (EnvironmentFailedError, NoSuchFormError, OSError, CalledProcessError)


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
            self._process.stdin.write(BATCH.dump_json(batch).decode() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineFailedError(self._how_it_ended()) from error
        return DONE.validate_python(self._receive("done", timeout))

    def pause(self) -> None:
        """Pause all processes, because an idle engine may use the CPU."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all processes."""
        self._signal(signal.SIGCONT)

    def memory_mb(self) -> dict[str, float]:
        """Resident memory of all processes in MB, as `lab.processes.memory_mb`."""
        return memory_mb(self._process.pid)

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
            raise EngineFailedError(f"no answer within {timeout:.0f} s: {end_of(self._log)}") from error
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
        return f"the engine's process {how}: {end_of(self._log)}"


def end_of(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])


@dataclass
class Entry:
    """The state and the measurements of one engine, apart from its answers."""

    peer: Peer
    weights: str = ""  # their format, in words
    ready_seconds: list[float] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None


class Lineup:
    """Runs the peers' processes; after a failure a peer is skipped, and the others continue."""

    def __init__(
        self,
        peers: Iterable[Peer],
        forms: WeightForms,
        asker: Asker,
        warm_up: Sequence[Inputs],
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self.entries = {peer.name: Entry(peer, forms.label(peer.form)) for peer in peers}
        self._forms = forms
        self._asker = asker
        self._warm_up = warm_up
        self._logs = logs
        self._say = say
        self._processes: dict[str, EngineProcess] = {}

    def prepare(self) -> None:
        """Install the peers' environments and make their weights, before anything is measured."""
        for entry in self.entries.values():
            try:
                python_of(entry.peer)
                self._forms.path(entry.peer.form)
            except NOT_PREPARED as error:
                self._failed(entry, error)

    def measure(self, peer: Peer, batches: Sequence[Batch]) -> Done | None:
        """Run batches in sequence; return the last one's replies, or None if the engine failed."""
        entry = self.entries[peer.name]
        if entry.error is not None:
            return None
        done = None
        try:
            process = self._running(peer)
            for batch in batches:
                done = process.run(batch, BATCH_SECONDS)
            entry.memory.append(process.memory_mb())
        except (EngineFailedError, *NOT_PREPARED) as error:
            self._failed(entry, error)
            self._end(peer)
            return None
        if peer.is_fresh:
            self._end(peer)
        else:
            process.pause()
        return done

    def close(self) -> None:
        """End all processes. May be called twice."""
        while self._processes:
            self._processes.popitem()[1].close()

    def _failed(self, entry: Entry, error: Exception) -> None:
        entry.error = str(error) or repr(error)
        self._say(f"{entry.peer.name}: {entry.error}")

    def _running(self, peer: Peer) -> EngineProcess:
        process = self._processes.get(peer.name)
        if process is not None:
            process.resume()
            return process
        python = python_of(peer)
        command = peer.command(python, self._forms.path(peer.form))
        process = EngineProcess(command, peer.env(python), self._logs / f"{peer.name}.log")
        self._processes[peer.name] = process
        entry = self.entries[peer.name]
        entry.ready_seconds.append(process.ready_seconds)
        entry.versions = process.versions
        asks = self._asker.asks(self._warm_up, WARM_UP_TOKENS, as_schema=peer.engine == LLAMA)
        process.run(Batch(asks, concurrency=1), BATCH_SECONDS)
        return process

    def _end(self, peer: Peer) -> None:
        process = self._processes.pop(peer.name, None)
        if process is not None:
            process.close()
