"""The training loop, with validation, checkpoints and a limit of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.train.allocator import KeptMemory
from pipeline.train.errors import TrainingError
from pipeline.train.lora_model import LoraModel
from pipeline.train.optimizer import AdapterOptimizer
from pipeline.train.packing import Pack, PackStream
from pipeline.train.record import STATE, Point, RunRecord

_WARM_UP = 0.03  # fraction of the run
_FLOOR = 0.02  # final learning rate as a fraction of the peak
_MAX_NORM = 1.0


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """The settings of a run, which ends after `minutes` or `epochs`, whichever is first."""

    peak_rate: float
    packs_per_step: int
    minutes: float
    epochs: float
    seed: int
    workers: int
    base_name: str
    optimizer: str = "adamw"
    checkpoint_seconds: float = 240.0
    validation_seconds: float = 900.0
    curve_every: int = 5


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up, then cosine decay.

    Args:
        progress: of the run, from 0 to 1: the larger of its fractions of samples and of time, so that the rate decays
            completely however busy the machine is.
        peak: the highest learning rate.
    """
    if progress < _WARM_UP:
        return peak * (progress + 1e-3) / (_WARM_UP + 1e-3)
    done = min(1.0, (progress - _WARM_UP) / (1 - _WARM_UP))
    return peak * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


class Trainer:
    """One run; `record` has its state, which may be an interrupted run's."""

    def __init__(
        self,
        model: LoraModel,
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
        self.optimizer = AdapterOptimizer(settings.optimizer, model.parameters(), settings.workers)
        self.stream = PackStream([len(pack.input_ids) for pack in packs], settings.seed, record.epoch, record.offset)
        self.stop_requested = False
        self._memory = KeptMemory()
        self._report, self._clock = report, clock
        self._total_samples = settings.epochs * num_examples
        self._recent: list[float] = []
        self._start = 0.0

    def restore(self) -> None:
        """Load the parameters and moments of the last checkpoint.

        Raises:
            TrainingError: the checkpoint belongs to a run with another rank, base or optimizer.
        """
        state, parameters = load_file(self.output / STATE), self.model.parameters()
        saved = [state[f"{i}.parameter"] for i in range(sum(name.endswith(".parameter") for name in state))]
        sizes = [sum(t.numel() for t in tensors) for tensors in (saved, parameters)]
        if [t.shape for t in saved] != [p.shape for p in parameters]:
            raise TrainingError(
                f"{self.output / STATE}: {sizes[0]:,} parameters, this run has {sizes[1]:,}; "
                "resume with the rank and base of the first run, or give another --output"
            )
        self.optimizer.load(state, self.record.steps)
        for parameter, values in zip(parameters, saved, strict=True):
            parameter.data.copy_(values)
        self.model.refresh()

    def run(self) -> RunRecord:
        """Train until the time or the epochs are over, or `stop_requested` is set."""
        self._start = self._clock() - self.record.seconds
        saved = validated = self.record.seconds
        # Threads with one core each are faster than one with all cores, which waits for the slowest core in every
        # matmul.
        count = self.settings.workers
        threads = 1 if count > 1 else torch.get_num_threads()
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
            while self.progress < 1 and not self.stop_requested:
                self._step(pool)
                if self.record.seconds - validated >= self.settings.validation_seconds:
                    self._validate(pool)
                    validated = self.record.seconds
                if self.record.seconds - saved >= self.settings.checkpoint_seconds:
                    self.save()
                    saved = self.record.seconds
            self.record.finished = self.progress >= 1
            if self.record.finished:
                self._validate(pool)
        self.save()
        self.record.draw(self.output)
        return self.record

    @property
    def progress(self) -> float:
        """Progress of the run, from 0 to 1."""
        of_time = self.record.seconds / (60 * self.settings.minutes)
        return max(of_time, self.record.samples / self._total_samples)

    def save(self) -> None:
        """Save the adapter, the optimizer's state and the record."""
        self.model.save(self.output, self.settings.base_name)
        state = self.optimizer.state()
        for i, parameter in enumerate(self.model.parameters()):
            state[f"{i}.parameter"] = parameter.detach().cpu()
        partial = self.output / f"{STATE}.partial"
        save_file(state, partial)
        partial.replace(self.output / STATE)
        self.record.save(self.output)

    def _step(self, pool: ThreadPoolExecutor) -> None:
        # The longest first, so that all threads finish at about the same time.
        taken = self.stream.take(self.settings.packs_per_step)
        batch = sorted((self.packs[i] for i in taken), key=lambda p: len(p.input_ids), reverse=True)
        tokens = sum(len(p.targets) for p in batch)
        results = list(pool.map(self._gradients, batch))
        loss = sum(one for one, _ in results) / tokens
        parameters = self.model.parameters()
        for parameter, *grads in zip(parameters, *(grads for _, grads in results), strict=True):
            parameter.grad = sum(grads) / tokens
        norm = torch.nn.utils.clip_grad_norm_(parameters, _MAX_NORM)
        rate = learning_rate(self.progress, self.settings.peak_rate)
        self.optimizer.step(rate, pool)
        list(pool.map(lambda layer: layer[1].refresh(), self.model.layers()))
        self._note(batch, loss, float(norm), rate)

    def _gradients(self, pack: Pack) -> tuple[float, tuple[Tensor, ...]]:
        """The loss of a pack and its gradients; threads share the parameters, so nothing is added to `.grad`."""
        loss = self.model.loss(pack)
        return float(loss.detach()), torch.autograd.grad(loss, self.model.parameters())

    def _note(self, batch: Sequence[Pack], loss: float, norm: float, rate: float) -> None:
        record = self.record
        record.steps += 1
        self._memory.release_when_scarce()
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
            f"rate {rate:.2e} · {speed:.2f} s each · {min(100.0, 100 * self.progress):.1f} %",
            self.progress,
        )

    def _validate(self, pool: ThreadPoolExecutor) -> None:
        if not self.validation:
            return
        record = self.record
        tokens = sum(len(p.targets) for p in self.validation)
        loss = sum(pool.map(self._score, self.validation)) / tokens
        record.validation_curve.append(Point(record.steps, record.samples, record.seconds, loss))
        self._report(f"validation loss {loss:.4f} after {record.samples} examples", self.progress)

    @torch.no_grad()
    def _score(self, pack: Pack) -> float:
        return float(self.model.loss(pack))
