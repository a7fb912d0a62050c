"""Keeps the API keys in a SQLite file, as digests only.

A digest is the SHA-256 of a whole key. A password needs a slow hash because people choose what others can guess. A key
has 256 random bits, which nobody can guess at any speed, so that a fast hash is enough and each request can afford it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import string
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.predictions.prediction import now

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, digest BLOB NOT NULL,
    per_minute REAL, concurrent INTEGER, created_at TEXT NOT NULL, revoked_at TEXT, admin INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS keys_name ON keys (name) WHERE revoked_at IS NULL;
"""
_FIELDS: Final = "id, name, per_minute, concurrent, created_at, revoked_at, admin"
_KEY: Final = re.compile(r"dk_([a-z0-9]{10})_[A-Za-z0-9_-]{43}")
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_ALPHABET: Final = string.ascii_lowercase + string.digits


class KeyNameError(Exception):
    """A name that cannot be used, or that no key has."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; not the key itself.

    Args:
        id: the part of the key that is no secret.
        name: the caller's name; predictions belong to it, so a new key of the same name sees those of the old one.
        per_minute: the number of predictions a minute; None is no limit.
        concurrent: the number of predictions at the same time; None is no limit.
        created_at, revoked_at: times in UTC as ISO 8601 text; None for a key that is not revoked.
        is_admin: whether the caller sees all corrections and decides on them.
    """

    id: str
    name: str
    per_minute: float | None
    concurrent: int | None
    created_at: str
    revoked_at: str | None
    is_admin: bool = False


class KeyFile:
    """The file of the keys, created if there is none; the gateway reads it while commands change it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode = WAL")  # who reads never waits for who writes
        self._db.executescript(_SCHEMA)
        if "admin" not in {name for (name,) in self._db.execute("SELECT name FROM pragma_table_info('keys')")}:
            with suppress(sqlite3.OperationalError):  # another process has added it meanwhile
                self._db.execute("ALTER TABLE keys ADD COLUMN admin INTEGER NOT NULL DEFAULT 0")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def create(
        self, name: str, *, per_minute: float | None = None, concurrent: int | None = None, is_admin: bool = False
    ) -> str:
        """Make a key; it cannot be shown again.

        Raises:
            KeyNameError: the name is not allowed, or a key that is not revoked has it.
        """
        if not _NAME.fullmatch(name):
            raise KeyNameError(f"{name[:100]!r} is not a name; use up to 64 letters, digits and . _ @ -")
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(10))
        key = f"dk_{key_id}_{secrets.token_urlsafe(32)}"
        try:
            self._db.execute(
                f"INSERT INTO keys ({_FIELDS}, digest) VALUES (?, ?, ?, ?, ?, NULL, ?, ?)",
                (key_id, name, per_minute, concurrent, now(), is_admin, _digest(key)),
            )
        except sqlite3.IntegrityError as error:
            raise KeyNameError(f"{name} has a key; revoke it before you create another") from error
        return key

    def all(self) -> list[ApiKey]:
        """All keys, also revoked ones, oldest first."""
        return [_key(row) for row in self._db.execute(f"SELECT {_FIELDS} FROM keys ORDER BY created_at")]

    def revoke(self, name: str) -> None:
        """Refuse a key from now on.

        Raises:
            KeyNameError: no key that is not revoked has this name.
        """
        query = "UPDATE keys SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL"
        if self._db.execute(query, (now(), name)).rowcount == 0:
            raise KeyNameError(f"no key has the name {name[:100]!r}; scripts/keys list shows all")

    def find(self, key: str) -> ApiKey | None:
        """What is known of a key that may be used; None for any other. It takes microseconds, so it needs no thread."""
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        with closing(self._db.execute(f"SELECT digest, {_FIELDS} FROM keys WHERE id = ?", (match[1],))) as rows:
            digest, *fields = rows.fetchone() or (b"",)
        # Found by the part that is no secret, compared in constant time: a wrong key learns nothing of the right one.
        if not hmac.compare_digest(digest, _digest(key)):
            return None
        found = _key(fields)
        return found if found.revoked_at is None else None


def _key(row: Sequence[Any]) -> ApiKey:
    key_id, name, per_minute, concurrent, created_at, revoked_at, admin = row
    return ApiKey(key_id, name, per_minute, concurrent, created_at, revoked_at, bool(admin))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
