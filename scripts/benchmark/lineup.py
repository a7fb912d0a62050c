"""The engines of one run: started when their turn comes, standing still while it is another's.

Owns: which processes live, that only one of them runs at a time, and what went wrong with whom. Knows
nothing of workloads.

    with closing(Lineup(peers, forms, asker, logs)) as lineup: lineup.measure(peer, [batch])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmark.peers import Peer, python_of
from scripts.benchmark.process import EngineFailedError, EngineProcess
from scripts.benchmark.protocol import Batch, Done
from scripts.benchmark.questions import Asker, Question
from scripts.benchmark.weights import WeightForms

BATCH_SECONDS = 1800.0
WARM_UP = (Question("count of everything", ("left", "right")), Question("newest", ("up", "down", "strange")))
WARM_UP_TOKENS = 32


@dataclass
class Entry:
    """What is known of one engine beside its answers."""

    ready_seconds: list[float] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None


class Lineup:
    """Peers that failed are asked no more; the rest goes on.

    Args:
        peers: in the order of results.
        forms: the weights.
        asker: for the requests of warming up.
        logs: folder for what engines say.
        say: told what went wrong, at once.
    """

    def __init__(
        self,
        peers: Iterable[Peer],
        forms: WeightForms,
        asker: Asker,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self.entries = {peer.name: Entry() for peer in peers}
        self._forms = forms
        self._asker = asker
        self._logs = logs
        self._say = say
        self._processes: dict[tuple[str, bool], EngineProcess] = {}

    def measure(self, peer: Peer, batches: Sequence[Batch], *, endless: bool = False) -> Done | None:
        """Run the batches one after the other; the last one's replies. None if the engine failed."""
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
        except (EngineFailedError, OSError) as error:
            entry.error = str(error) or repr(error)
            self._say(f"{peer.name}: {entry.error}")
            self._end(peer, endless)
            return None
        return done

    def start_again(self, peer: Peer) -> None:
        """Only for its time to ready."""
        if self.entries[peer.name].error is None and not peer.is_fresh:
            self._end(peer, endless=False)
            self.measure(peer, [])

    def close(self) -> None:
        """End all processes. May be called twice."""
        while self._processes:
            self._processes.popitem()[1].close()

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
        asks = () if endless else self._asker.asks(WARM_UP, peer.dialect, WARM_UP_TOKENS)
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
