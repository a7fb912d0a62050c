"""Keeps corrections in a SQLite file of their own, in which nothing expires, and which commands change meanwhile.

Each change is one transaction, and so whole or not there; SQLite lets the writers of several processes wait for each
other.
"""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from gateway.corrections.correction import Correction, Kind, State

_COLUMNS: Final = tuple(Correction.__dataclass_fields__)
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS corrections (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    {", ".join(name for name in _COLUMNS if name != "id")}
)"""
_LOAD: Final = f"SELECT number, {', '.join(_COLUMNS)} FROM corrections"
_INSERT: Final = f"INSERT INTO corrections ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_SEEN: Final = "(? IS NULL OR owner = ? OR shared)"  # with `CorrectionFile._owner` twice
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class CorrectionPage:
    """Corrections, newest first.

    Args:
        corrections: of this page.
        older: a number for `CorrectionFile.page` that leads to the next one; None where there is none.
    """

    corrections: tuple[Correction, ...]
    older: int | None


class CorrectionFile:
    """The file of the corrections, created if there is none. It may be used from several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.chmod(0o600)  # it has prompts and answers
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")  # who reads never waits for who writes
        self._db.execute(_SCHEMA)
        self._owner: str | None = None  # whose corrections are seen beside the shared ones; None: everybody's

    def of(self, owner: str) -> CorrectionFile:
        """The same open file, in which only the owner's and the shared corrections are seen, and only own deleted."""
        view = copy.copy(self)
        view._owner = owner
        return view

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, correction: Correction) -> None:
        """Keep a new correction."""
        self._db.execute(_INSERT, _row(correction))

    def add_all(self, corrections: Sequence[Correction]) -> None:
        """Keep new corrections, all or none; while it does, no other thread may use the file."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_INSERT, map(_row, corrections))

    def get(self, correction_id: str) -> Correction | None:
        """A correction that may be seen."""
        rows = self._db.execute(f"{_LOAD} WHERE id = ? AND {_SEEN}", (correction_id, self._owner, self._owner))
        row = rows.fetchone()
        return None if row is None else _correction(row)

    def page(
        self,
        *,
        kind: Kind | None = None,
        state: State | None = None,
        prediction: str | None = None,
        older_than: int | None = None,
        size: int = _PAGE,
    ) -> CorrectionPage:
        """The newest corrections of a kind and state, about one prediction; None stands for any."""
        conditions, values = ["number < ?", _SEEN], [2**62 if older_than is None else older_than, *[self._owner] * 2]
        for name, value in {"kind": kind, "state": state, "prediction": prediction}.items():
            if value is not None:
                conditions.append(f"{name} = ?")
                values.append(value)
        query = f"{_LOAD} WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        rows = self._db.execute(query, (*values, size + 1)).fetchall()
        return CorrectionPage(tuple(map(_correction, rows[:size])), int(rows[size - 1][0]) if rows[size:] else None)

    def all(self, *, kind: Kind | None = None, state: State | None = None) -> list[Correction]:
        """All corrections of a kind and state, oldest first."""
        return list(reversed(self.page(kind=kind, state=state, size=2**31).corrections))

    def change(self, changed: Correction) -> None:
        """Keep the state, the note and the sharing of a correction that is there already."""
        query = "UPDATE corrections SET state = ?, note = ?, shared = ?, decided_by = ?, decided_at = ? WHERE id = ?"
        values = (changed.state, changed.note, changed.shared, changed.decided_by, changed.decided_at, changed.id)
        self._db.execute(query, values)

    def remove(self, correction_id: str) -> bool:
        """Delete a correction for ever; whether there was one that may be deleted."""
        query = "DELETE FROM corrections WHERE id = ? AND (? IS NULL OR owner = ?)"
        return self._db.execute(query, (correction_id, self._owner, self._owner)).rowcount > 0


def _row(correction: Correction) -> Sequence[object]:
    values = dict(zip(_COLUMNS, astuple(correction), strict=True))
    return tuple({**values, "input": json.dumps(values["input"])}.values())


def _correction(row: Sequence[Any]) -> Correction:
    values = dict(zip(_COLUMNS, row[1:], strict=True))
    values |= {"kind": Kind(values["kind"]), "state": State(values["state"])}
    return Correction(**{**values, "input": json.loads(values["input"]), "shared": bool(values["shared"])})
