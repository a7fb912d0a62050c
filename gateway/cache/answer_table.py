"""Knows which prediction has the answer to which request: a table beside the predictions, limited in size and age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiosqlite

from gateway.predictions.prediction import now, timestamp

_PRUNED: Final = 0.9  # share of the limit that a full table is reduced to, so that not every new answer prunes
# A deleted prediction takes its answer with it, however it was deleted.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    prediction_id TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    used_at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answers_prediction_id ON answers (prediction_id);
CREATE TRIGGER IF NOT EXISTS answers_of_deleted AFTER DELETE ON predictions
    BEGIN DELETE FROM answers WHERE prediction_id = OLD.id; END;
"""
_BYTES: Final = " + ".join(f"length(CAST({name} AS BLOB))" for name in ("input", "output", "logs", "metrics"))
_KEEP: Final = (
    "INSERT OR REPLACE INTO answers (key, prediction_id, num_bytes, created_at, used_at) "
    f"SELECT ?, id, {_BYTES}, ?, ? FROM predictions WHERE id = ? AND {_BYTES} <= ? RETURNING num_bytes"
)
_USE: Final = "UPDATE answers SET used_at = ? WHERE key = ? AND created_at >= ? RETURNING prediction_id"
# From the most recently used on, as many as fit.
_PRUNE: Final = """
DELETE FROM answers WHERE key IN (
    SELECT key FROM (SELECT key, SUM(num_bytes) OVER (ORDER BY used_at DESC, key) AS total FROM answers)
    WHERE total > ?
)
"""


class AnswerTable:
    """The table in the predictions' database, with a connection of its own.

    Args:
        path: the path of the database, in which the predictions' table exists.
        max_bytes: the limit of all predictions together that the table refers to.
        max_age: the age of the oldest answer that is given.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_age: timedelta) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_age = max_age
        self.num_bytes = 0  # at most; what deleted predictions had is subtracted at the next pruning

    async def open(self) -> None:
        """Connect to the database, and drop what is over the limits."""
        self._db = await aiosqlite.connect(self._path, isolation_level=None)
        try:
            await self._db.execute("PRAGMA synchronous = NORMAL")
            await self._db.executescript(_SCHEMA)
            await self._prune()
        except BaseException:
            await self._db.close()  # else its thread would keep the process alive
            raise

    async def close(self) -> None:
        """Close the connection to the database."""
        await self._db.close()

    async def find(self, key: str) -> str | None:
        """The id of the prediction with the answer, which now counts as used; None if there is none."""
        # In one call of the thread: with RETURNING, the database is locked until all rows are read.
        rows = list(await self._db.execute_fetchall(_USE, (now(), key, self._oldest())))
        return str(rows[0][0]) if rows else None

    async def keep(self, key: str, prediction_id: str) -> None:
        """Refer to a kept prediction from now on, unless it would take all the room."""
        time, limit = now(), round(self._max_bytes * _PRUNED)
        rows = await self._db.execute_fetchall(_KEEP, (key, time, time, prediction_id, limit))
        self.num_bytes += sum(num_bytes for (num_bytes,) in rows)
        if self.num_bytes > self._max_bytes:
            await self._prune()

    async def _prune(self) -> None:
        await self._db.execute("DELETE FROM answers WHERE created_at < ?", (self._oldest(),))
        if await self._measure() > self._max_bytes:
            await self._db.execute(_PRUNE, (round(self._max_bytes * _PRUNED),))
            await self._measure()

    async def _measure(self) -> int:
        [[self.num_bytes]] = await self._db.execute_fetchall("SELECT COALESCE(SUM(num_bytes), 0) FROM answers")
        return self.num_bytes

    def _oldest(self) -> str:
        return timestamp(datetime.now(UTC) - self._max_age)
