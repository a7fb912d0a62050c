"""What is kept: after a restart, for how long, and that an end is never undone."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.predictions.prediction import Prediction, Status, Webhook, new_id, now
from gateway.predictions.store import Store
from tests.gateway.fake_cog import FakeCog
from tests.gateway.running import gateway_to, run, until

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


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = Store(None)
    await store.open()
    yield store
    await store.close()


async def test_what_was_written_is_there_after_a_restart_and_what_ran_is_marked(tmp_path: Path):
    path = tmp_path / "new" / "predictions.sqlite"
    first, second = Store(path), Store(path)
    assert await first.open() == ()
    await first.save(RUNNING, ENDED)
    assert await first.secret("webhook", "first") == "first"
    await first.close()
    (interrupted,) = await second.open()
    assert interrupted == await second.get(RUNNING.id)
    assert (interrupted.status, interrupted.output, interrupted.logs) == (Status.FAILED, RUNNING.output, "log")
    assert interrupted.error.startswith("interrupted")
    assert await second.get(ENDED.id) == ENDED
    assert await second.get("unknown") is None
    assert await second.secret("webhook", "second") == "first"
    await second.close()


async def test_an_end_is_not_undone_by_a_save_that_comes_late(store: Store):
    ended = replace(RUNNING, status=Status.CANCELED)
    for one in (RUNNING, ended, RUNNING):
        await store.save(one)
    assert await store.get(RUNNING.id) == ended


async def test_a_failed_save_changes_nothing_and_the_next_one_works(store: Store):
    with pytest.raises(sqlite3.Error):
        await store.save(ENDED, replace(RUNNING, model=object()))
    assert await store.get(ENDED.id) is None
    await store.save(ENDED)
    assert await store.get(ENDED.id) == ENDED


async def test_old_predictions_are_deleted_when_they_have_ended(store: Store):
    old = "2020-01-01T00:00:00.000000Z"
    await store.save(replace(RUNNING, created_at=old), replace(ENDED, created_at=old))
    new = replace(ENDED, id=new_id())
    await store.save(new)
    assert await store.delete_created_before("2021-01-01T00:00:00.000000Z") == 1
    assert [one.id for one in (await store.page()).predictions] == [new.id, RUNNING.id]
    assert (await store.delete(new.id), await store.delete(new.id)) == (True, False)


@pytest.mark.parametrize("keep", [True, False])
async def test_with_keep_off_nothing_reaches_the_disk(tmp_path: Path, keep: bool):
    path = tmp_path / "predictions.sqlite"
    async with FakeCog(pieces=("secret",)) as cog, gateway_to(cog, database=path, keep=keep) as gateway:
        one = await run(gateway)
        assert (await gateway.store.get(one.id)).status is Status.SUCCEEDED
    assert path.exists() is keep
    assert any(b"secret" in file.read_bytes() for file in tmp_path.iterdir()) is keep


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


async def test_a_database_of_an_earlier_version_gets_the_newest_column(tmp_path: Path):
    path = tmp_path / "predictions.sqlite"
    store = Store(path)
    await store.open()
    await store.save(ENDED)
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE predictions DROP COLUMN request")
        database.commit()
    await store.open()
    assert await store.get(ENDED.id) == ENDED
    kept = replace(ENDED, id="another", request={"input": []})
    await store.save(kept)
    assert await store.get("another") == kept
    await store.close()


async def test_deletions_of_what_is_old_go_on_after_an_error_of_the_database(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    class Broken(Store):
        async def delete_created_before(self, time: str) -> int:
            asked.append(time)
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("gateway.gateway.DELETE_SECONDS", 0.01)
    monkeypatch.setattr("gateway.gateway.Store", Broken)
    async with FakeCog() as cog, gateway_to(cog):
        await until(lambda: len(asked) >= 3)


def sure(lowest: object, owner: str | None = None) -> Prediction:
    return replace(ENDED, id=new_id(), owner=owner, metrics={"confidence": {"lowest": lowest}})


async def all_doubtful(store: Store) -> list[str]:
    """The ids of all pages of two."""
    found, place = [], None
    while True:
        page = await store.doubtful(surer_than=place, size=2)
        found += [one.id for one in page.predictions]
        if page.surer is None:
            return found
        place = page.surer


async def test_doubtful_answers_come_first_and_of_equal_ones_the_newest(store: Store):
    saved = [sure(lowest) for lowest in (0.5, 1, 0.25, 0.5, 0.0, 0.5)]
    await store.save(*saved)
    assert await all_doubtful(store) == [saved[i].id for i in (4, 2, 5, 3, 0, 1)]


async def test_answers_without_a_confidence_are_left_out(store: Store):
    odd = [sure("0.1"), sure(None), sure(float("nan")), sure([0.1])]
    await store.save(RUNNING, ENDED, *odd, replace(ENDED, id=new_id(), metrics={"confidence": 0.5}))
    assert await all_doubtful(store) == []
    assert await store.get(odd[0].id) == odd[0]


async def test_an_owner_sees_only_its_own_doubtful_answers(store: Store):
    hers, his = sure(0.5, "alice"), sure(0.25, "bob")
    await store.save(hers, his)
    assert await all_doubtful(store.of("alice")) == [hers.id]
    assert await all_doubtful(store) == [his.id, hers.id]
