"""Takes away the disk from a running server and gateway, and gives a server little memory."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from lab.bench.gateway_servers import PREDICTIONS
from lab.endurance.client import ClientResult, ask_all, opened
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import SLOTS, Stage
from lab.endurance.workload import marked
from lab.processes import family, resident_bytes

_MEMORY: Final = 1536 << 20  # bytes
_CONTROLS: Final = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
_FULL_DISK: Final = ("bash", "-c", 'ulimit -Sf 0; exec "$@"', "without-a-disk")


def scarce_resources(stage: Stage, amounts: Amounts) -> Result:
    """Let every write to a file fail, as on a full disk; then give 1.5 GiB of memory, where the system can limit it."""
    questions = [marked(number) for number in range(min(SLOTS, amounts.waiters))]
    with stage.plain_server() as server:
        expected = asyncio.run(ask_all(server.url, questions, at_once=len(questions)))
        with stage.gateway(server) as gateway:
            with _without_disk([*family(server.process.pid), *family(gateway.pid)]):
                full = asyncio.run(ask_all(server.url, questions, at_once=len(questions)))
                statuses = asyncio.run(_create(gateway.url))
            afterwards = asyncio.run(_create(gateway.url))
    others = sum(status not in (201, 503) for status in statuses)
    checks, about = ([], {}) if amounts.is_quick else _starts(stage, questions, expected)
    return Result(
        checks=(
            Check("before: questions without an answer", sum(not one.is_as_expected for one in expected), 0),
            Check("full disk: answers that changed or are missing", _num_changed(full, expected), 0),
            Check("full disk: the gateway's answers that are no refusal", others, 0),
            Check("disk again: what the gateway refuses", sum(status != 201 for status in afterwards), 0),
            *checks,
        ),
        about={"at once": len(questions), "the gateway with a full disk answered": str(sorted(set(statuses))), **about},
    )


def _starts(
    stage: Stage, questions: list[dict[str, Any]], expected: list[ClientResult]
) -> tuple[list[Check], dict[str, float | str]]:
    """Servers that have no disk, and little memory, from their start; these are left out of a quick run."""
    with stage.plain_server(_FULL_DISK) as server:
        started = asyncio.run(ask_all(server.url, questions, at_once=len(questions)))
    with _memory_limit() as wrapper, stage.plain_server(wrapper) as server:
        little = asyncio.run(ask_all(server.url, questions, at_once=len(questions)))
        resident = resident_bytes(server.process.pid)
    checks = [
        Check("start with a full disk: changed or missing", _num_changed(started, expected), 0),
        Check("1.5 GiB: answers that changed or are missing", _num_changed(little, expected), 0),
        Check("1.5 GiB: resident", resident / 2**20, _MEMORY / 2**20, "MiB"),
    ]
    return checks, {"memory is limited by": "a control group" if wrapper else "nothing here; it is only measured"}


async def _create(gateway: str) -> list[int]:
    """Statuses of three new predictions of the gateway."""
    found = []
    async with opened(gateway) as client:
        for number in range(3):
            body = {"input": marked(number)}
            async with client.session.post(PREDICTIONS, json=body) as response:
                found.append(response.status)
    return found


def _num_changed(found: list[ClientResult], expected: list[ClientResult]) -> int:
    return sum((a.status, a.text) != (b.status, b.text) for a, b in zip(found, expected, strict=True))


@contextmanager
def _without_disk(processes: list[psutil.Process]) -> Iterator[None]:
    """These processes cannot make any file longer inside the `with` block."""
    limits = [(one.pid, resource.prlimit(one.pid, resource.RLIMIT_FSIZE)) for one in processes]
    for pid, (_, hard) in limits:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limit in limits:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


@contextmanager
def _memory_limit() -> Iterator[tuple[str, ...]]:
    """A command that runs another one in a control group with little memory; empty where none can be made."""
    for root, name in _CONTROLS:
        group = Path(root) / f"endure-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(_MEMORY))
        except OSError:
            group.rmdir()
            continue
        try:
            yield ("bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "with-little-memory")
        finally:
            with suppress(OSError):  # a process that has just ended may still be in it
                group.rmdir()
        return
    yield ()
