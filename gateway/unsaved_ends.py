"""Keeps the final states that the database has refused, and saves them again."""

from __future__ import annotations

import sqlite3

from gateway.predictions import Prediction
from gateway.store import Store


class UnsavedEnds:
    """Predictions that have ended, while the database says that they run.

    Args:
        store: refused them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._finals: dict[str, Prediction] = {}

    def add(self, final: Prediction) -> None:
        """Show it from here until it is saved."""
        self._finals[final.id] = final

    def find(self, prediction_id: str) -> Prediction | None:
        """A prediction that is not saved."""
        return self._finals.get(prediction_id)

    def forget(self, prediction_id: str) -> None:
        """Do not save it any more."""
        self._finals.pop(prediction_id, None)

    async def save(self) -> None:
        """Save as many as the database takes."""
        for final in tuple(self._finals.values()):
            if final.id not in self._finals:  # deleted meanwhile
                continue
            try:
                await self._store.save(final)
            except sqlite3.Error:  # the log has its first refusal
                return
            self.forget(final.id)
