"""The engines of one run, each in its own process, which is paused while another one is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError

from lab.bench.asker import Asker
from lab.bench.peer_weights import NoSuchFormError, WeightForms
from lab.bench.peers import EnvironmentFailedError, Peer, python_of
from lab.bench.process import EngineFailedError, EngineProcess
from lab.bench.protocol import Batch, Done
from lab.bench.questions import Question

BATCH_SECONDS = 1800.0
WARM_UP_TOKENS = 32
_NOT_PREPARED = (EnvironmentFailedError, NoSuchFormError, OSError, CalledProcessError)


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
    """Runs the peers' processes; after a failure a peer is skipped, and the others continue.

    Args:
        peers: the engines, in the order of results.
        forms: the weights.
        asker: turns questions into requests.
        warm_up: the first questions to each engine.
        logs: folder for the engines' output.
        say: called with a message for each failure.
    """

    def __init__(
        self,
        peers: Iterable[Peer],
        forms: WeightForms,
        asker: Asker,
        warm_up: Sequence[Question],
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self.entries = {peer.name: Entry(peer, forms.label(peer.form)) for peer in peers}
        self._forms = forms
        self._asker = asker
        self._warm_up = warm_up
        self._logs = logs
        self._say = say
        self._processes: dict[tuple[str, bool], EngineProcess] = {}

    def prepare(self) -> None:
        """Install the peers' environments and make their weights, before anything is measured."""
        for entry in self.entries.values():
            try:
                python_of(entry.peer)
                self._forms.path(entry.peer.form)
            except _NOT_PREPARED as error:
                self._failed(entry, error)

    def measure(self, peer: Peer, batches: Sequence[Batch], *, endless: bool = False) -> Done | None:
        """Run batches in sequence; return the last one's replies, or None if the engine failed."""
        entry = self.entries[peer.name]
        if entry.error is not None:
            return None
        done = None
        try:
            process = self._running(peer, endless)
            for batch in batches:
                done = process.run(batch, BATCH_SECONDS)
            entry.memory.append(process.memory_mb())
            self._rest(peer, endless)
        except (EngineFailedError, *_NOT_PREPARED) as error:
            self._failed(entry, error)
            self._end(peer, endless)
            return None
        return done

    def start_again(self, peer: Peer) -> None:
        """Start a peer again, to measure its time until it is ready."""
        if self.entries[peer.name].error is None and not peer.is_fresh:
            self._end(peer, endless=False)
            self.measure(peer, [])

    def close(self) -> None:
        """End all processes. May be called twice."""
        while self._processes:
            self._processes.popitem()[1].close()

    def _failed(self, entry: Entry, error: Exception) -> None:
        entry.error = str(error) or repr(error)
        self._say(f"{entry.peer.name}: {entry.error}")

    def _running(self, peer: Peer, endless: bool) -> EngineProcess:
        process = self._processes.get((peer.name, endless))
        if process is not None:
            process.resume()
            return process
        python = python_of(peer)
        command = peer.command(python, self._forms, endless=endless)
        name = f"{peer.name}-endless" if endless else peer.name
        process = EngineProcess(command, peer.env(python), self._logs / f"{name}.log")
        self._processes[peer.name, endless] = process
        entry = self.entries[peer.name]
        entry.ready_seconds.append(process.ready_seconds)
        entry.versions = process.versions
        asks = () if endless else self._asker.asks(self._warm_up, peer.dialect, WARM_UP_TOKENS)
        process.run(Batch(asks, concurrency=1), BATCH_SECONDS)
        return process

    def _rest(self, peer: Peer, endless: bool) -> None:
        if peer.is_fresh:
            self._end(peer, endless)
        else:
            self._processes[peer.name, endless].pause()

    def _end(self, peer: Peer, endless: bool) -> None:
        process = self._processes.pop((peer.name, endless), None)
        if process is not None:
            process.close()
