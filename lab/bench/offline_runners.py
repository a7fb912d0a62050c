"""What scripts/dev/bench --workloads batch compares: scripts/batch, vLLM offline, and Ray Data with vLLM's server.

Each is one command, of which the wall time and the peak of its processes' memory are measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from lab.bench.asker import Asker, Inputs
from lab.bench.lineup import EngineFailedError, end_of
from lab.bench.offline_vllm import to_request
from lab.bench.peers import MAX_NUM_SEQS, PEERS, Peer, WeightForms, python_of
from lab.bench.protocol import ASK
from lab.endurance.cog_process import free_port
from lab.processes import family, memory_mb
from pipeline.environment.enter import prepare
from pipeline.paths import ROOT
from serving.clients.vllm_parameters import vllm_parameters
from serving.grammar import check_constraint
from serving.text import Tokenizer

RAY: Final = "ray-"  # before the name of a vLLM peer
NAMES: Final = ("paged", "paged-plain", "vllm…", f"{RAY}vllm…")
_SECONDS: Final = 7200.0  # limit of one command
_EVERY: Final = 0.5  # seconds between two looks at the memory
_ANY_LENGTH: Final = 1 << 30  # the task's own limit of an answer counts, as for scripts/batch


@dataclass(frozen=True, slots=True)
class Measured:
    """A command's wall time and memory.

    Args:
        seconds: the time from its start to its end.
        peak_mb: the memory of all its processes together, with pages that they share counted once (PSS).
    """

    seconds: float
    peak_mb: float


def run_measured(command: Sequence[str], env: Mapping[str, str], log: Path, limit: float) -> Measured:
    """Run a command to its end.

    Args:
        command: program and arguments.
        env: all of its environment variables.
        log: the file that gets its output.
        limit: the limit of its time in seconds.

    Raises:
        EngineFailedError: it failed, or took longer; the message has the end of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), cwd=ROOT, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    peak, stopped = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, stopped), daemon=True)
    watcher.start()
    try:
        code = process.wait(timeout=limit)
        seconds = time.perf_counter() - begun
    except subprocess.TimeoutExpired as error:
        raise EngineFailedError(f"not ready within {limit:.0f} s: {end_of(log)}") from error
    finally:
        stopped.set()
        watcher.join()
        _kill(process)
    if code:
        raise EngineFailedError(f"ended with {code}: {end_of(log)}")
    return Measured(seconds, peak[0])


def _watch(pid: int, peak: list[float], stopped: threading.Event) -> None:
    while not stopped.wait(_EVERY):
        peak[0] = max(peak[0], memory_mb(pid)["pss_mb"])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command's session, and processes in sessions of their own, as Ray's."""
    left = family(process.pid)[1:]
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in left:
        with suppress(psutil.Error):
            child.kill()
    process.wait()


@dataclass(frozen=True, slots=True)
class OfflineAnswer:
    """The answer to one row.

    Args:
        text: the text as the runner gives it; None if there is none.
        finish: the reason why the model stopped; None for an answer that the task has checked already.
        tokens: the number of tokens that were generated.
    """

    text: str | None
    finish: str | None
    tokens: int


class OfflineRunner(Protocol):
    """Answers rows with one command, from its start to its end."""

    @property
    def peer(self) -> Peer:
        """The engine and its settings."""
        ...

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        """Answer the questions in a folder of its own.

        Raises:
            EngineFailedError, EnvironmentFailedError, NoSuchFormError: it cannot.
        """
        ...


@dataclass(frozen=True)
class BatchScript:
    """scripts/batch --local with one of this package's engines."""

    peer: Peer
    forms: WeightForms
    asker: Asker

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        """See `OfflineRunner`."""
        rows, out = folder / "rows.jsonl", folder / "out.jsonl"
        _write(rows, map(json.dumps, questions))
        settings = _settings(self.peer, self.forms)
        env = {name.upper(): str(value) for name, value in settings.items()}
        lock = Path(settings["weights_dir"]).with_suffix(".lock")
        env |= {"WEIGHTS_LOCK": str(lock)} if lock.is_file() else {}
        command = [sys.executable, str(ROOT / "scripts/batch"), str(rows), "--out", str(out), "--local"]
        measured = run_measured(command, {**os.environ, **env}, folder / "log", _SECONDS)
        return measured, [
            OfflineAnswer(row["answer"], None, row["answer_output_tokens"]) for row in map(json.loads, _lines(out))
        ]


@dataclass(frozen=True)
class VllmOffline:
    """vLLM's `LLM.generate`, with all requests in one call."""

    peer: Peer
    forms: WeightForms
    asker: Asker

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        """See `OfflineRunner`."""
        asks, out, python = folder / "asks.jsonl", folder / "out.jsonl", python_of(self.peer)
        _write(asks, (ASK.dump_json(ask).decode() for ask in self.asker.asks(questions, _ANY_LENGTH)))
        command = [*_program(self.peer, self.forms, "generate"), str(asks), str(out)]
        measured = run_measured(command, self.peer.env(python), folder / "log", _SECONDS)
        return measured, _answers(out)


@dataclass(frozen=True)
class RayHttp:
    """Ray Data's HTTP request processor, which asks vLLM's server; the server's start and memory count."""

    peer: Peer
    forms: WeightForms
    asker: Asker

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        """See `OfflineRunner`."""
        payloads, out, port = folder / "payloads.jsonl", folder / "out.jsonl", str(free_port())
        _write(payloads, map(json.dumps, self._payloads(questions)))
        python = prepare("ray-data") / "bin" / "python"
        command = [str(python), "-m", "lab.bench.offline_ray", str(MAX_NUM_SEQS), str(payloads), str(out)]
        command += [port, *_program(self.peer, self.forms, "serve"), port]
        env = self.peer.env(python) | {"PYTHONPATH": str(ROOT)}
        measured = run_measured(command, env, folder / "log", _SECONDS)
        return measured, _answers(out)

    def _payloads(self, questions: Sequence[Inputs]) -> list[dict[str, Any]]:
        tokenizer = Tokenizer.from_dir(self.forms.path(self.peer.form))
        length = int(str(self.peer.settings["max_model_len"]))
        found = []
        for ask in self.asker.asks(questions, _ANY_LENGTH):
            request = to_request(ask)
            parameters = vllm_parameters(request, tokenizer=tokenizer, max_model_len=length, speculates=True)
            payload = {"model": "model", "prompt": list(ask.prompt), **parameters}
            if request.constraint is not None:
                payload["structured_outputs"] = {"grammar": check_constraint(request.constraint)}
            found.append({name: value for name, value in payload.items() if value is not None})
        return found


def find_runner(name: str, forms: WeightForms, asker: Asker) -> OfflineRunner | None:
    """The runner of a name; None if there is none."""
    peer = PEERS.get(name.removeprefix(RAY))
    if peer is None or peer.engine not in ("paged", "vllm", "fake"):
        return None
    if peer.engine == "vllm":
        return RayHttp(peer, forms, asker) if name.startswith(RAY) else VllmOffline(peer, forms, asker)
    return None if name.startswith(RAY) else BatchScript(peer, forms, asker)


def _settings(peer: Peer, forms: WeightForms) -> dict[str, Any]:
    return {"max_num_seqs": MAX_NUM_SEQS, **peer.settings, "weights_dir": str(forms.path(peer.form).resolve())}


def _program(peer: Peer, forms: WeightForms, action: str) -> list[str]:
    python = python_of(peer)
    return [str(python), "-m", "lab.bench.offline_vllm", action, json.dumps(_settings(peer, forms))]


def _answers(file: Path) -> list[OfflineAnswer]:
    return [OfflineAnswer(**json.loads(line)) for line in _lines(file)]


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines()


def _write(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
