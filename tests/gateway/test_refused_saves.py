"""What becomes of predictions when the database refuses to save them."""

from __future__ import annotations

import asyncio
import sqlite3

from gateway.predictions import Prediction, Status
from gateway.store import Store
from tests.gateway.fake_cog import FakeCog
from tests.gateway.running import door_to, first_piece, prediction, run, until


async def test_a_save_that_failed_is_tried_again_although_nothing_has_changed(tmp_path, monkeypatch):
    failed: list[Prediction] = []
    save = Store.save

    async def fail_once(store: Store, *predictions: Prediction) -> None:
        if not failed and any(one.output for one in predictions):
            failed.extend(predictions)
            raise sqlite3.OperationalError("database or disk is full")
        await save(store, *predictions)

    monkeypatch.setattr(Store, "save", fail_once)
    async with FakeCog() as cog, door_to(cog, keep=True, database=tmp_path / "door.sqlite") as door:
        one = await door.runner.start(prediction())
        await first_piece(one)
        async with asyncio.timeout(20):
            while not (kept := await door.store.get(one.id)).output:
                await asyncio.sleep(0.01)
        assert (kept.status, kept.output, len(failed)) == (Status.PROCESSING, ["a"], 1)


async def test_an_end_that_could_not_be_saved_is_shown_and_saved_later(tmp_path, monkeypatch):
    is_full = True
    save = Store.save

    async def refuse_ends(store: Store, *predictions: Prediction) -> None:
        if is_full and any(one.status.is_final for one in predictions):
            raise sqlite3.OperationalError("database or disk is full")
        await save(store, *predictions)

    monkeypatch.setattr(Store, "save", refuse_ends)
    async with FakeCog() as cog, door_to(cog, keep=True, database=tmp_path / "door.sqlite") as door:
        cog.gate.set()
        final, deleted = await run(door), await run(door)
        await until(lambda: door.runner.num_active == 0)
        assert await door.runner.get(final.id) == final
        assert (await door.store.get(final.id)).status is not Status.SUCCEEDED
        assert await door.runner.delete(deleted.id)
        is_full = False
        async with asyncio.timeout(20):
            while await door.store.get(final.id) != final:
                await asyncio.sleep(0.01)
        assert await door.runner.get(deleted.id) is None
