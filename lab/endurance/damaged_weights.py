"""Damages the files of the weights under a running server, and before a server starts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.endurance.client import ask_all
from lab.endurance.own_weights import copied_weights
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import marked
from serving.errors import WeightsError
from serving.weights import verify

_QUESTIONS: Final = tuple(map(marked, range(3)))  # after each damage
_MODEL: Final = "model.safetensors"
_INVERTED: Final = bytes(range(255, -1, -1))


def damaged_weights(stage: Stage, amounts: Amounts) -> Result:
    """A running server must go on with the same answers; one that starts must refuse and name the file."""
    folder = stage.subfolder("damaged")
    env = copied_weights(stage.weights, folder)
    weights, lock = Path(env["WEIGHTS_DIR"]), Path(env["WEIGHTS_LOCK"])
    wrong, silent = _while_running(stage, env, [_MODEL] if amounts.is_quick else _names(weights))
    unnoticed = [
        f"{damage.__name__} {name}"
        for name in _names(weights)
        for damage in _DAMAGES
        if not _is_refused(stage, weights, lock, name, damage)
    ]
    started = _starts(stage, env, _DAMAGES[:1] if amounts.is_quick else _DAMAGES)
    return Result(
        checks=(
            Check("running: wrong answers", len(wrong), 0),
            Check("running: errors", len(silent), 0),
            Check("before the start: not refused with the file's name", len(unnoticed), 0),
            Check("servers that started, or did not name the file", len(started), 0),
        ),
        about={"files": len(_names(weights)), "kinds of damage": len(_DAMAGES)},
        losses=(*wrong[:3], *silent[:3], *unnoticed[:3], *started[:3]),
    )


def _while_running(stage: Stage, env: dict[str, str], names: list[str]) -> tuple[list[str], list[str]]:
    """Answers that differ from those before the damage, and questions without an answer."""
    weights = Path(env["WEIGHTS_DIR"])
    wrong, silent = list[str](), list[str]()
    with stage.own_server({**env, "PREFIX_CACHING": "false"}) as server:
        expected = asyncio.run(ask_all(server.url, _QUESTIONS))
        silent += [f"before: {one.status} {one.error}" for one in expected if not one.is_as_expected]
        for name in names:
            for damage in _DAMAGES:
                with _damaged(stage, weights, name, damage):
                    found = asyncio.run(ask_all(server.url, _QUESTIONS))
                about = f"{damage.__name__} {name}"
                pairs = list(zip(found, expected, strict=True))
                wrong += [about for one, right in pairs if one.status == right.status and one.text != right.text]
                silent += [f"{about}: {one.error}" for one, right in pairs if one.status != right.status]
    return wrong, silent


def _is_refused(stage: Stage, weights: Path, lock: Path, name: str, damage: Callable[[Path], None]) -> bool:
    with _damaged(stage, weights, name, damage):
        try:
            verify(weights, lock)
        except WeightsError as error:
            return name in str(error)
    return False


def _starts(stage: Stage, env: dict[str, str], damages: tuple[Callable[[Path], None], ...]) -> list[str]:
    """Damages with which a server started, or was refused without the name of the file."""
    found = []
    for damage in damages:
        with _damaged(stage, Path(env["WEIGHTS_DIR"]), _MODEL, damage):
            status, logs = stage.failed_start(env)
        if status != "SETUP_FAILED" or _MODEL not in logs:
            found.append(f"{damage.__name__} {_MODEL}: {status} {logs[-300:]}")
    return found


@contextmanager
def _damaged(stage: Stage, weights: Path, name: str, damage: Callable[[Path], None]) -> Iterator[None]:
    """A file is damaged inside the `with` block."""
    path = weights / name
    try:
        damage(path)
        yield
    finally:
        path.unlink()
        shutil.copy(stage.weights / name, path)


def _names(weights: Path) -> list[str]:
    return sorted(path.name for path in weights.iterdir())


def changed(path: Path) -> None:
    """Invert each byte, in the same file, so that a process that has mapped it sees the change."""
    with path.open("r+b") as file:
        while part := file.read(1 << 20):
            file.seek(-len(part), 1)
            file.write(part.translate(_INVERTED))


def truncated(path: Path) -> None:
    """Cut the file to half its length."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def linked(path: Path) -> None:
    """Replace the file by a symbolic link to the same bytes."""
    original = path.parent.parent / f"{path.name}.original"
    path.replace(original)
    path.symlink_to(original)


_DAMAGES: Final[tuple[Callable[[Path], None], ...]] = (changed, truncated, linked)
