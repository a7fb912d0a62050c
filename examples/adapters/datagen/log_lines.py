"""Lines of logs in several forms, and their level, service and message."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_SERVICES = words(
    """checkout billing search auth mailer gateway worker cache orders images reports upload proxy
    scheduler inventory"""
)
_MESSAGES = {
    "error": (
        "connection refused",
        "timeout after {n} ms",
        "disk full",
        "cannot open file {n}.txt",
        "bad signature",
        "out of memory",
    ),
    "warning": ("retry {n}", "queue is long", "slow query, {n} ms", "certificate ends in {n} days", "cache is cold"),
    "info": ("started", "listening on port {n}", "user {n} signed in", "job {n} done", "reloaded settings"),
}
_NAMES = {"error": ("ERROR", "ERR", "error"), "warning": ("WARN", "WARNING", "warn"), "info": ("INFO", "info", "Info")}
_FORMS = (
    "{time} {level} {service}: {message}",
    "{time} [{level}] {service} - {message}",
    "[{service}] {level} {message}",
    "{level} {time} {service} {message}",
    "{time} {service}[{pid}]: {level}: {message}",
)


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A line and its fields."""
    level, service = rng.choice(sorted(_MESSAGES)), rng.choice(_SERVICES)
    message = rng.choice(_MESSAGES[level]).format(n=rng.randint(2, 9999))
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
    time = rng.choice((clock, f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {clock}"))
    values = {"time": time, "level": rng.choice(_NAMES[level]), "pid": rng.randint(100, 9999)}
    text = rng.choice(_FORMS).format(service=service, message=message, **values)
    return text, {"level": level, "service": service, "message": message}
