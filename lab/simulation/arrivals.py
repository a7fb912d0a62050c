"""When requests arrive, and which of them have equal beginnings of prompts: generated, or recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

BURST_SECONDS: Final = 10.0  # length of a burst, where the simulation is long enough for MIN_PERIODS
QUIET: Final = 0.5  # rate between bursts divided by the mean rate
MIN_PERIODS: Final = 4


class ArrivalsError(Exception):
    """A file of arrivals cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in the order of their times.

    Args:
        times: seconds, [n] float64, ascending.
        prefixes: number of the beginning of each prompt, [n] int64.
    """

    times: NDArray[np.float64]
    prefixes: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return len(self.times) / float(self.times[-1]) if len(self.times) else 0.0


def poisson(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Times of a Poisson process of `rate` requests per second, [n] float64."""
    count = rng.poisson(rate * seconds)
    return np.sort(rng.uniform(0.0, seconds, count))


def bursty(rng: np.random.Generator, rate: float, seconds: float, burst: float) -> NDArray[np.float64]:
    """Times of a Poisson process whose rate switches between two values in fixed periods, [n] float64.

    In a burst, requests come at `burst` times the mean rate, else at half of it. The periods are whole and at least
    four, so that the mean rate is right in a short simulation too.

    Args:
        rng: source of randomness.
        rate: mean requests per second.
        seconds: length.
        burst: rate of a burst divided by the mean rate, above 1.
    """
    share = (1 - QUIET) / (burst - QUIET)  # of the time that is in a burst
    periods = max(MIN_PERIODS, round(seconds * share / BURST_SECONDS))
    period = seconds / periods
    times = []
    for start in np.arange(periods) * period:
        times.append(start + poisson(rng, rate * QUIET, period * (1 - share)))
        times.append(start + period * (1 - share) + poisson(rng, rate * burst, period * share))
    return np.concatenate(times)


def generate(rng: np.random.Generator, rate: float, seconds: float, *, burst: float, num_prefixes: int) -> Arrivals:
    """Arrivals at random times, whose beginnings of prompts have Zipf's distribution (the k-th has weight 1 / k).

    Args:
        rng: source of randomness.
        rate: mean requests per second.
        seconds: length.
        burst: 1 for a Poisson process, more for bursts of that many times the mean rate.
        num_prefixes: number of different beginnings.
    """
    times = poisson(rng, rate, seconds) if burst <= 1 else bursty(rng, rate, seconds, burst)
    weights = 1.0 / np.arange(1, num_prefixes + 1)
    return Arrivals(times, rng.choice(num_prefixes, len(times), p=weights / weights.sum()))


def read_arrivals(path: Path) -> Arrivals:
    """Recorded arrivals: JSON lines of {"at": seconds, "prefix": text}, where `prefix` may be left out.

    Raises:
        ArrivalsError: the file cannot be read, is empty, or a line has another format.
    """
    records: list[tuple[float, str]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    record = json.loads(line)
                    records.append((float(record["at"]), str(record.get("prefix", number))))
    except OSError as error:
        raise ArrivalsError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ArrivalsError(f'{path}:{number}: a line is {{"at": seconds, "prefix": text}} ({error!r})') from error
    if not records:
        raise ArrivalsError(f"{path} has no arrivals; a line is {{'at': seconds, 'prefix': text}}")
    records.sort()
    numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(prefix for _, prefix in records))}
    times = np.array([at for at, _ in records])
    return Arrivals(times - times[0], np.array([numbers[prefix] for _, prefix in records]))
