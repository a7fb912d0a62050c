"""Keeps where a candidate answered something else: a table beside the predictions, which ends with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiosqlite
from pydantic import JsonValue

from gateway.predictions.prediction import now, output_text

PAGE: Final = 50
# A deleted prediction takes its pair with it, however it was deleted, also while no candidate is asked.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS shadow_pairs (
    prediction_id TEXT PRIMARY KEY,
    candidate TEXT NOT NULL,
    answer TEXT,
    error TEXT,
    is_example INTEGER NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS shadow_pairs_of_deleted AFTER DELETE ON predictions
    BEGIN DELETE FROM shadow_pairs WHERE prediction_id = OLD.id; END;
"""
_KEEP: Final = (
    "INSERT OR REPLACE INTO shadow_pairs (prediction_id, candidate, answer, error, is_example, created_at) "
    "SELECT id, ?, ?, ?, ?, ? FROM predictions WHERE id = ?"
)
_LOAD: Final = """
SELECT p.id, p.owner, p.created_at, p.input, p.output, s.answer, s.error, s.is_example
FROM shadow_pairs AS s JOIN predictions AS p ON p.id = s.prediction_id
WHERE s.candidate = ? AND p.version = ? AND (? IS NULL OR p.owner = ?)
ORDER BY s.is_example DESC, p.number DESC LIMIT ? OFFSET ?
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one request.

    Args:
        prediction: the id of the prediction.
        owner: the name of the API key that made it; None where the gateway asks for no keys.
        created_at: when it was made.
        input: its inputs.
        given: the answer that the caller got.
        answer: the candidate's; None where it failed.
        error: why it failed; None where it answered.
        is_example: whether the inputs are those of an example of the playground.
    """

    prediction: str
    owner: str | None
    created_at: str
    input: Mapping[str, JsonValue]
    given: str
    answer: str | None
    error: str | None
    is_example: bool


class PairTable:
    """The table in the predictions' database, with a connection of its own.

    Args:
        path: the path of the database, in which the predictions' table exists.
        candidate: the name of the candidate, whose pairs are kept and listed.
    """

    def __init__(self, path: Path, candidate: str) -> None:
        self._path = path
        self._candidate = candidate

    async def open(self) -> None:
        """Connect to the database."""
        self._db = await aiosqlite.connect(self._path, isolation_level=None)
        try:
            await self._db.execute("PRAGMA synchronous = NORMAL")
            await self._db.executescript(_SCHEMA)
        except BaseException:
            await self._db.close()  # else its thread would keep the process alive
            raise

    async def close(self) -> None:
        """Close the connection to the database."""
        await self._db.close()

    async def keep(self, prediction_id: str, answer: str | None, error: str | None, *, is_example: bool) -> None:
        """Keep what the candidate said in place of a kept prediction's answer; nothing if that was deleted meanwhile.

        Raises:
            sqlite3.Error: the table cannot be written.
        """
        await self._db.execute(_KEEP, (self._candidate, answer, error, is_example, now(), prediction_id))

    async def page(self, version: str, owner: str | None, start: int) -> tuple[list[Pair], bool]:
        """Pairs of one version's predictions, and whether there are more; those of examples first, then the newest.

        Args:
            version: the version that answered the callers.
            owner: whose predictions they are; None for everybody's.
            start: the number of pairs that come before.
        """
        values = (self._candidate, version, owner, owner, PAGE + 1, start)
        rows = list(await self._db.execute_fetchall(_LOAD, values))
        return [_pair(*row) for row in rows[:PAGE]], len(rows) > PAGE


def _pair(number: str, owner: str | None, created_at: str, inputs: str, output: str, *rest: Any) -> Pair:
    answer, error, is_example = rest
    given = output_text(json.loads(output))
    return Pair(number, owner, created_at, json.loads(inputs), given, answer, error, bool(is_example))
