"""What is kept: after a restart, for how long, and that an end is never undone."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.door import open_door
from gateway.predictions import Prediction, Status, Webhook, new_id, now
from gateway.settings import DoorSettings
from gateway.store import DatabaseInUseError, Store
from tests.gateway.fake_cog import FakeCog

RUNNING = Prediction(
    new_id(),
    "a/b",
    "0" * 64,
    {"text": "é\x00\n"},
    now(),
    Status.PROCESSING,
    output=["a", {"b": [1.5, None]}],
    logs="log",
)
ENDED = replace(
    RUNNING, id=new_id(), status=Status.SUCCEEDED, completed_at=now(), webhook=Webhook("https://a.b", ("completed",))
)


async def test_what_was_written_is_there_after_a_restart_and_what_ran_is_marked(tmp_path: Path):
    path = tmp_path / "new" / "predictions.sqlite"
    first = Store(path)
    assert await first.open() == ()
    await first.save(RUNNING, ENDED)
    await first.close()
    second = Store(path)
    (interrupted,) = await second.open()
    assert interrupted == await second.get(RUNNING.id)
    assert (interrupted.status, interrupted.output, interrupted.logs) == (Status.FAILED, RUNNING.output, "log")
    assert interrupted.error.startswith("interrupted")
    assert await second.get(ENDED.id) == ENDED
    assert await second.get("unknown") is None
    await second.close()


async def test_an_end_is_not_undone_by_a_save_that_comes_late(tmp_path: Path):
    store = Store(None)
    await store.open()
    await store.save(RUNNING)
    ended = replace(RUNNING, status=Status.CANCELED)
    await store.save(ended)
    await store.save(RUNNING)
    assert await store.get(RUNNING.id) == ended
    await store.close()


async def test_a_failed_save_changes_nothing_and_the_next_one_works():
    store = Store(None)
    await store.open()
    with pytest.raises(sqlite3.Error):
        await store.save(ENDED, replace(RUNNING, model=object()))
    assert await store.get(ENDED.id) is None
    await store.save(ENDED)
    assert await store.get(ENDED.id) == ENDED
    await store.close()


async def test_two_doors_do_not_share_a_database(tmp_path: Path):
    first, second = Store(tmp_path / "p.sqlite"), Store(tmp_path / "p.sqlite")
    await first.open()
    with pytest.raises(DatabaseInUseError, match="DOOR_DATABASE"):
        await second.open()
    await first.close()


async def test_old_predictions_are_deleted_when_they_have_ended():
    store = Store(None)
    await store.open()
    old = "2020-01-01T00:00:00.000000Z"
    await store.save(replace(RUNNING, created_at=old), replace(ENDED, created_at=old))
    new = replace(ENDED, id=new_id())
    await store.save(new)
    assert await store.delete_created_before("2021-01-01T00:00:00.000000Z") == 1
    assert [one.id for one in (await store.page()).predictions] == [new.id, RUNNING.id]
    assert (await store.delete(new.id), await store.delete(new.id)) == (True, False)
    await store.close()


@pytest.mark.parametrize("keep", [True, False])
async def test_with_keep_off_nothing_reaches_the_disk(tmp_path: Path, keep: bool):
    path = tmp_path / "predictions.sqlite"
    async with FakeCog() as cog:
        cog.gate.set()
        settings = DoorSettings(upstreams=(cog.url,), database=path, keep=keep, drain_seconds=5)
        async with open_door(settings) as door:
            one = Prediction(new_id(), "a/b", "0" * 64, {"text": "secret"}, now())
            await (await door.runner.start(one)).finished()
            assert (await door.store.get(one.id)).status is Status.SUCCEEDED
    assert path.exists() is keep
    assert any(b"secret" in file.read_bytes() for file in tmp_path.iterdir()) is keep


async def test_a_secret_is_made_once(tmp_path: Path):
    for value in ("first", "second"):
        store = Store(tmp_path / "p.sqlite")
        await store.open()
        assert await store.secret("webhook", value) == "first"
        await store.close()


async def test_nobody_else_can_read_the_files(tmp_path: Path):
    path = tmp_path / "p.sqlite"
    path.touch(0o644)  # as an earlier version made it
    store = Store(path)
    await store.open()
    await store.save(ENDED)
    files = [file for file in tmp_path.iterdir() if file.suffix != ".lock"]  # that one is empty
    assert len(files) >= 2, "the database and its log"
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    await store.close()


async def test_deletions_of_what_is_old_go_on_after_an_error_of_the_database(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    class Broken(Store):
        async def delete_created_before(self, time: str) -> int:
            asked.append(time)
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gateway.door._DELETE_SECONDS", 0.01)
    monkeypatch.setattr("gateway.door.Store", Broken)
    async with FakeCog() as cog, open_door(DoorSettings(upstreams=(cog.url,), keep=False)):
        async with asyncio.timeout(20):
            while len(asked) < 3:
                await asyncio.sleep(0.01)
