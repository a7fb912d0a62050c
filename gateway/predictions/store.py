"""Keeps predictions in SQLite, where what was written survives a kill of the gateway."""

from __future__ import annotations

import asyncio
import copy
import fcntl
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final

import aiosqlite

from gateway.predictions.prediction import Prediction, Status, Webhook, now

INTERRUPTED: Final = "interrupted: the gateway stopped while this prediction ran; send it again"
_JSON: Final = ("input", "output", "metrics", "webhook", "request")
_COLUMNS: Final = tuple(Prediction.__dataclass_fields__)
# `number` orders predictions by creation; AUTOINCREMENT never gives one twice, so cursors stay right after deletions.
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS predictions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    {", ".join(f"{name} TEXT" for name in _COLUMNS if name != "id")}
);
CREATE INDEX IF NOT EXISTS predictions_created_at ON predictions (created_at);
CREATE INDEX IF NOT EXISTS predictions_status ON predictions (status);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_RUNNING: Final = (Status.STARTING, Status.PROCESSING)
# A final state is never replaced, in whatever order saves arrive.
_SAVE: Final = (
    f"INSERT INTO predictions ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS if name != 'id')} "
    f"WHERE predictions.status IN {tuple(status.value for status in _RUNNING)}"
)
_OWN: Final = "(? IS NULL OR owner = ?)"  # with `Store._owner` twice
_LOAD: Final = f"SELECT number, {', '.join(_COLUMNS)} FROM predictions"
# The confidence of an answer's least sure field, in metrics that may be any JSON; NULL where they have none.
_LOWEST: Final = (
    "CASE WHEN json_valid(metrics) AND json_type(metrics, '$.confidence.lowest') IN ('real', 'integer') "
    "THEN json_extract(metrics, '$.confidence.lowest') END"
)
_INDEX: Final = f"""
CREATE INDEX IF NOT EXISTS predictions_lowest ON predictions ({_LOWEST}, number DESC) WHERE {_LOWEST} IS NOT NULL
"""


class DatabaseInUseError(Exception):
    """Another gateway has the database open."""


@dataclass(frozen=True, slots=True)
class Page:
    """Predictions, newest first.

    Args:
        predictions: of this page.
        newer, older: numbers for `Store.page` that lead to the pages beside it; None where there is none.
    """

    predictions: tuple[Prediction, ...]
    newer: int | None
    older: int | None


@dataclass(frozen=True, slots=True)
class DoubtfulPage:
    """Predictions whose answers' confidence is known, the least sure first.

    Args:
        predictions: of this page.
        surer: leads to the next page (`Store.doubtful`); None if this is the last.
    """

    predictions: tuple[Prediction, ...]
    surer: tuple[float, int] | None


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A version of a model, and the predictions that it has answered.

    Args:
        model, version: the model's name and the version's id.
        weights_digest: the digest of the weights, where the gateway was told.
        num_predictions: of those that are kept.
        first_at, last_at: the times of the first and the last of them, as in `Prediction`.
    """

    model: str
    version: str
    weights_digest: str | None
    num_predictions: int
    first_at: str
    last_at: str


class Store:
    """The database of one gateway, in a file; without a path in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock: IO[str] | None = None
        self._writing = asyncio.Lock()  # one transaction at a time on the one connection
        self._owner: str | None = None  # whose predictions are seen; None: everybody's

    def of(self, owner: str) -> Store:
        """The same open database, in which only the predictions of one owner can be seen and deleted."""
        view = copy.copy(self)
        view._owner = owner
        return view

    async def open(self) -> tuple[Prediction, ...]:
        """Open the database; predictions that were running are marked as failed.

        Returns:
            Those predictions.

        Raises:
            DatabaseInUseError: another gateway has it open.
        """
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self._path)
            # It has prompts, answers and a secret. SQLite gives its other files the same mode.
            self._path.touch(0o600)
            self._path.chmod(0o600)
        self._db = await aiosqlite.connect(self._path or ":memory:", isolation_level=None)
        try:
            return await self._prepare()
        except BaseException:
            await self.close()  # else its thread would keep the process alive
            raise

    async def close(self) -> None:
        """Close the database."""
        await self._db.close()
        if self._lock is not None:
            self._lock.close()

    async def save(self, *predictions: Prediction) -> None:
        """Insert or update predictions in one transaction."""
        if len(predictions) == 1:  # a statement alone is a transaction, and one call of the thread instead of three
            async with self._writing:
                await self._db.execute(_SAVE, _row(predictions[0]))
            return
        async with self._writing:
            await self._db.execute("BEGIN IMMEDIATE")
            try:
                # A generator: the texts are made in the database's thread, not in the event loop's.
                await self._db.executemany(_SAVE, (_row(prediction) for prediction in predictions))
            except BaseException:
                await self._db.execute("ROLLBACK")
                raise
            await self._db.execute("COMMIT")

    async def get(self, prediction_id: str) -> Prediction | None:
        """A prediction as it was last saved."""
        query = f"{_LOAD} WHERE id = ? AND {_OWN}"
        rows = await self._db.execute_fetchall(query, (prediction_id, self._owner, self._owner))
        return next(map(_prediction, rows), None)

    async def page(self, *, older_than: int | None = None, newer_than: int | None = None, size: int = 100) -> Page:
        """The newest predictions, or those beside a number of another page."""
        if newer_than is not None:
            where, order, bound = "number > ?", "ASC", newer_than
        else:
            where, order, bound = "number < ?", "DESC", 2**62 if older_than is None else older_than
        query = f"{_LOAD} WHERE {where} AND {_OWN} ORDER BY number {order} LIMIT ?"
        found = await self._db.execute_fetchall(query, (bound, self._owner, self._owner, size))
        rows = sorted(found, reverse=True)
        if not rows:
            return Page((), None, None)
        first, last = int(rows[0][0]), int(rows[-1][0])
        newer, older = await self._has("number > ?", first), await self._has("number < ?", last)
        return Page(tuple(map(_prediction, rows)), first if newer else None, last if older else None)

    async def doubtful(self, *, surer_than: tuple[float, int] | None = None, size: int = 100) -> DoubtfulPage:
        """The predictions with the lowest confidence, of equal ones the newest first, or those behind another page."""
        lowest, number = (-1.0, 0) if surer_than is None else surer_than
        query = (
            f"{_LOAD.replace('number,', f'{_LOWEST}, number,', 1)} WHERE {_LOWEST} IS NOT NULL AND {_OWN} "
            f"AND ({_LOWEST} > ? OR ({_LOWEST} = ? AND number < ?)) ORDER BY {_LOWEST}, number DESC LIMIT ?"
        )
        values = (self._owner, self._owner, lowest, lowest, number, size + 1)
        rows = list(map(tuple, await self._db.execute_fetchall(query, values)))
        shown = rows[:size]
        surer = (float(shown[-1][0]), int(shown[-1][1])) if len(rows) > size else None
        return DoubtfulPage(tuple(_prediction(row[1:]) for row in shown), surer)

    async def count(self) -> int:
        """How many predictions there are."""
        query = f"SELECT COUNT(*) FROM predictions WHERE {_OWN}"
        [[number]] = await self._db.execute_fetchall(query, (self._owner, self._owner))
        return int(number)

    async def versions(self) -> tuple[VersionUse, ...]:
        """The versions that have answered, the one that was used last first."""
        query = (
            "SELECT model, version, MAX(weights_digest), COUNT(*), MIN(created_at), MAX(created_at) FROM predictions "
            f"WHERE {_OWN} GROUP BY model, version ORDER BY MAX(number) DESC"
        )
        rows = await self._db.execute_fetchall(query, (self._owner, self._owner))
        return tuple(VersionUse(*row) for row in rows)

    async def secret(self, name: str, if_new: str) -> str:
        """A secret of this gateway, which is `if_new` when it is asked for the first time."""
        async with self._writing:
            await self._db.execute("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", (name, if_new))
        [[value]] = await self._db.execute_fetchall("SELECT value FROM secrets WHERE name = ?", (name,))
        return str(value)

    async def delete(self, prediction_id: str) -> bool:
        """Delete a prediction; whether there was one."""
        async with self._writing:
            query = f"DELETE FROM predictions WHERE id = ? AND {_OWN}"
            done = await self._db.execute(query, (prediction_id, self._owner, self._owner))
        return done.rowcount > 0

    async def delete_created_before(self, time: str) -> int:
        """Delete finished predictions that were created before a time, as `now` writes it; how many."""
        async with self._writing:
            query = "DELETE FROM predictions WHERE created_at < ? AND status NOT IN (?, ?)"
            done = await self._db.execute(query, (time, *_RUNNING))
        return done.rowcount

    async def _prepare(self) -> tuple[Prediction, ...]:
        await self._db.execute("PRAGMA journal_mode = WAL")
        await self._db.execute("PRAGMA synchronous = NORMAL")  # survives a kill of the process, not a loss of power
        await self._db.executescript(_SCHEMA)
        await self._add_columns()
        await self._db.execute(_INDEX)
        rows = await self._db.execute_fetchall(f"{_LOAD} WHERE status IN (?, ?) ORDER BY number", _RUNNING)
        running = map(_prediction, rows)
        failed = [replace(one, status=Status.FAILED, error=INTERRUPTED, completed_at=now()) for one in running]
        await self.save(*failed)
        return tuple(failed)

    async def _has(self, condition: str, bound: int) -> bool:
        query = f"SELECT 1 FROM predictions WHERE {condition} AND {_OWN} LIMIT 1"
        return bool(await self._db.execute_fetchall(query, (bound, self._owner, self._owner)))

    async def _add_columns(self) -> None:
        """A database of an earlier version lacks the newest columns."""
        have = {
            name for (name,) in await self._db.execute_fetchall("SELECT name FROM pragma_table_info('predictions')")
        }
        for name in _COLUMNS:
            if name not in have:
                await self._db.execute(f"ALTER TABLE predictions ADD COLUMN {name} TEXT")


def _lock(path: Path) -> IO[str]:
    """Two gateways with one database would each take the other's predictions for interrupted ones."""
    file = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise DatabaseInUseError(f"{path} is used by another gateway; stop that one or set GATEWAY_DATABASE") from error
    return file


def _row(prediction: Prediction) -> tuple[str | None, ...]:
    values = {name: getattr(prediction, name) for name in _COLUMNS}
    values["webhook"] = prediction.webhook and asdict(prediction.webhook)
    return tuple(json.dumps(values[name]) if name in _JSON else values[name] for name in _COLUMNS)


def _prediction(row: sqlite3.Row | Sequence[str]) -> Prediction:
    values = dict(zip(_COLUMNS, tuple(row)[1:], strict=True))
    for name in _JSON:
        values[name] = json.loads(values[name] or "null")  # an earlier version's lacks the newest columns
    webhook = values.pop("webhook")
    return Prediction(
        **{**values, "status": Status(values["status"])},
        webhook=webhook and Webhook(webhook["url"], tuple(webhook["events"])),
    )
