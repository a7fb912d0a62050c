"""The training loop: packs in, an adapter and a record out, on time.

Owns: when to step, to validate, to write a checkpoint and to stop. Knows nothing of files' formats
or of how gradients come about.

    Trainer(model, packs, validation, output, settings).run()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from scripts.training.adapter_file import save_adapter
from scripts.training.allocator import release_freed_memory
from scripts.training.errors import AdapterError
from scripts.training.model import LoraLlama
from scripts.training.optimizer import AdamW, learning_rate
from scripts.training.packing import Pack
from scripts.training.record import Point, RunRecord
from scripts.training.stream import PackStream
from scripts.training.workers import Workers

STATE = "state.safetensors"
RELEASE_EVERY = 10  # steps


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The choices of a run. `minutes` and `epochs` both bound it; what is reached first ends it."""

    peak_rate: float
    packs_per_step: int
    minutes: float
    epochs: float
    seed: int
    workers: int
    base_name: str
    checkpoint_seconds: float = 240.0
    validation_seconds: float = 900.0
    curve_every: int = 5


class Trainer:
    """One run. `record` is where it stands; it may come from an earlier one."""

    def __init__(
        self,
        model: LoraLlama,
        packs: Sequence[Pack],
        num_examples: int,
        validation: Sequence[Pack],
        output: Path,
        settings: TrainSettings,
        record: RunRecord,
        report: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.packs, self.validation = model, packs, validation
        self.output, self.settings, self.record = output, settings, record
        self.optimizer = AdamW(model.parameters)
        self.stream = PackStream(len(packs), settings.seed, record.epoch, record.offset)
        self.stop_requested = False
        self._report, self._clock = report, clock
        self._total_samples = settings.epochs * num_examples
        self._recent: list[float] = []
        self._start = 0.0

    def restore(self) -> None:
        """Parameters and moments of the last checkpoint.

        Raises:
            AdapterError: it is of a run with another rank or base.
        """
        state = load_file(self.output / STATE)
        found, wanted = len(state["parameters"]), len(self.model.parameters)
        if found != wanted:
            raise AdapterError(
                f"{self.output / STATE}: {found:,} parameters, this run has {wanted:,}; "
                "resume with the rank and base of the first run, or give another --output"
            )
        self.model.parameters.copy_(state["parameters"])
        self.optimizer.first.copy_(state["first"])
        self.optimizer.second.copy_(state["second"])
        self.optimizer.steps = self.record.steps
        self.model.refresh()

    def run(self) -> RunRecord:
        """Train until the time, the epochs or the caller's patience are over."""
        self._start = self._clock() - self.record.seconds
        saved = validated = self.record.seconds
        with Workers(self.model, self.settings.workers) as workers:
            while self.progress < 1 and not self.stop_requested:
                self._step(workers)
                if self.record.seconds - validated >= self.settings.validation_seconds:
                    self._validate(workers)
                    validated = self.record.seconds
                if self.record.seconds - saved >= self.settings.checkpoint_seconds:
                    self.save()
                    saved = self.record.seconds
            self.record.finished = self.progress >= 1
            if self.record.finished:
                self._validate(workers)
        self.save()
        self.record.draw(self.output)
        return self.record

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        of_time = self.record.seconds / (60 * self.settings.minutes)
        return max(of_time, self.record.samples / self._total_samples)

    def save(self) -> None:
        """Adapter, optimizer and record."""
        save_adapter(self.model, self.output, self.settings.base_name)
        state = {
            "parameters": self.model.parameters,
            "first": self.optimizer.first,
            "second": self.optimizer.second,
        }
        partial = self.output / f"{STATE}.partial"
        save_file({name: t.cpu() for name, t in state.items()}, partial)
        partial.replace(self.output / STATE)
        self.record.save(self.output)

    def _step(self, workers: Workers) -> None:
        batch = [self.packs[i] for i in self.stream.take(self.settings.packs_per_step)]
        loss, grads = workers.gradients(batch)
        rate = learning_rate(self.progress, self.settings.peak_rate)
        norm = self.optimizer.step(grads, rate)
        workers.refresh()
        record = self.record
        record.steps += 1
        if record.steps % RELEASE_EVERY == 0:
            release_freed_memory()
        record.samples += sum(p.num_branches for p in batch)
        record.epoch, record.offset = self.stream.epoch, self.stream.offset
        self._recent.append(loss)
        if len(self._recent) == self.settings.curve_every:
            mean = sum(self._recent) / len(self._recent)
            record.train_curve.append(Point(record.steps, record.samples, record.seconds, mean, rate))
            self._recent.clear()
        speed = record.seconds / record.samples
        record.seconds = self._clock() - self._start
        self._report(
            f"step {record.steps} · {record.samples} examples · loss {loss:.4f} · norm {norm:.2f} · "
            f"rate {rate:.2e} · {speed:.2f} s each · {100 * self.progress:.1f} %",
            self.progress,
        )

    def _validate(self, workers: Workers) -> None:
        if not self.validation:
            return
        record = self.record
        loss = workers.loss(self.validation)
        record.validation_curve.append(Point(record.steps, record.samples, record.seconds, loss))
        self._report(f"validation loss {loss:.4f} after {record.samples} examples", self.progress)
