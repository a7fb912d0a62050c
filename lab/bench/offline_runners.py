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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from lab.bench.asker import Asker, Inputs
from lab.bench.lineup import EngineFailedError, end_of
from lab.bench.offline_vllm import to_request
from lab.bench.peers import MAX_NUM_SEQS, PEERS, Peer, WeightForms, python_of
from lab.bench.protocol import ASK
from lab.endurance.cog_process import free_port
from lab.processes import family, memory_mb
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT
from serving.clients.vllm_parameters import vllm_parameters
from serving.grammar import check_constraint
from serving.text import Tokenizer

RAY: Final = "ray-"  # before the name of a vLLM peer
NAMES: Final = ("paged", "paged-plain", "vllm…", f"{RAY}vllm…")
_SECONDS: Final = 7200.0  # limit of one command
_EVERY: Final = 0.5  # seconds between two looks at the memory
Command = tuple[Iterable[str], list[str], Mapping[str, str]]  # lines of rows, command, environment
_ANY_LENGTH: Final = 1 << 30  # the task's own limit of an answer counts, as for scripts/batch


@dataclass(frozen=True, slots=True)
class Measured:
    """A command's wall time, and the memory of all its processes together, with shared pages counted once (PSS)."""

    seconds: float
    peak_mb: float


def run_measured(command: Sequence[str], env: Mapping[str, str], log: Path, limit: float) -> Measured:
    """Run a command to its end, within `limit` seconds; `log` gets its output.

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


@dataclass(frozen=True)
class OfflineRunner:
    """Answers rows with one command, from its start to its end."""

    peer: Peer
    forms: WeightForms
    asker: Asker

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        """Answer the questions in a folder of its own.

        Raises:
            EngineFailedError, EnvironmentFailedError, NoSuchFormError: it cannot.
        """
        rows, out = folder / "rows.jsonl", folder / "out.jsonl"
        lines, command, env = self._command(questions, rows, out)
        rows.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        measured = run_measured(command, env, folder / "log", _SECONDS)
        return measured, [self._answer(json.loads(line)) for line in out.read_text("utf-8").splitlines()]

    def _command(self, questions: Sequence[Inputs], rows: Path, out: Path) -> Command:
        """The lines of the file of rows, the command that answers them in another file, and its environment."""
        raise NotImplementedError

    def _answer(self, line: dict[str, Any]) -> OfflineAnswer:
        return OfflineAnswer(**line)

    def _settings(self) -> dict[str, Any]:
        weights = str(self.forms.path(self.peer.form).resolve())
        return {"max_num_seqs": MAX_NUM_SEQS, **self.peer.settings, "weights_dir": weights}

    def _vllm(self, action: str) -> list[str]:
        python = python_of(self.peer)
        return [str(python), "-m", "lab.bench.offline_vllm", action, json.dumps(self._settings())]


class BatchScript(OfflineRunner):
    """scripts/batch --local with one of this package's engines."""

    def _command(self, questions: Sequence[Inputs], rows: Path, out: Path) -> Command:
        settings = self._settings()
        env = {name.upper(): str(value) for name, value in settings.items()}
        lock = Path(settings["weights_dir"]).with_suffix(".lock")
        env |= {"WEIGHTS_LOCK": str(lock)} if lock.is_file() else {}
        command = [sys.executable, str(ROOT / "scripts/batch"), str(rows), "--out", str(out), "--local"]
        return map(json.dumps, questions), command, {**os.environ, **env}

    def _answer(self, line: dict[str, Any]) -> OfflineAnswer:
        return OfflineAnswer(line["answer"], None, line["answer_output_tokens"])


class VllmOffline(OfflineRunner):
    """vLLM's `LLM.generate`, with all requests in one call."""

    def _command(self, questions: Sequence[Inputs], rows: Path, out: Path) -> Command:
        asks = (ASK.dump_json(ask).decode() for ask in self.asker.asks(questions, _ANY_LENGTH))
        return asks, [*self._vllm("generate"), str(rows), str(out)], self.peer.env(python_of(self.peer))


class RayHttp(OfflineRunner):
    """Ray Data's HTTP request processor, which asks vLLM's server; the server's start and memory count."""

    def _command(self, questions: Sequence[Inputs], rows: Path, out: Path) -> Command:
        port, python = str(free_port()), installed_environment("ray-data") / "bin" / "python"
        command = [str(python), "-m", "lab.bench.offline_ray", str(MAX_NUM_SEQS), str(rows), str(out), port]
        env = self.peer.env(python_of(self.peer)) | {"PYTHONPATH": str(ROOT)}
        return map(json.dumps, self._payloads(questions)), [*command, *self._vllm("serve"), port], env

    def _payloads(self, questions: Sequence[Inputs]) -> Iterator[dict[str, Any]]:
        tokenizer = Tokenizer.from_dir(self.forms.path(self.peer.form))
        length = int(str(self.peer.settings["max_model_len"]))
        for ask in self.asker.asks(questions, _ANY_LENGTH):
            request = to_request(ask)
            parameters = vllm_parameters(request, tokenizer=tokenizer, max_model_len=length, speculates=True)
            payload = {"model": "model", "prompt": list(ask.prompt), **parameters}
            if request.constraint is not None:
                payload["structured_outputs"] = {"grammar": check_constraint(request.constraint)}
            yield {name: value for name, value in payload.items() if value is not None}


def find_runner(name: str, forms: WeightForms, asker: Asker) -> OfflineRunner | None:
    """The runner of a name; None if there is none."""
    peer = PEERS.get(name.removeprefix(RAY))
    if peer is None or peer.engine not in ("paged", "vllm", "fake"):
        return None
    if peer.engine == "vllm":
        return RayHttp(peer, forms, asker) if name.startswith(RAY) else VllmOffline(peer, forms, asker)
    return None if name.startswith(RAY) else BatchScript(peer, forms, asker)
