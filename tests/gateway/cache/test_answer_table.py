"""The table of answers: bounded in bytes and age, the least recently used go first, deleted ones at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.cache import answer_table
from gateway.cache.answer_table import AnswerTable
from gateway.predictions.prediction import Prediction, Status, new_id, now
from gateway.predictions.store import Store

ROW = 1000  # bytes of one prediction


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "gateway.sqlite")
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def table(folder: Path, num_rows: float = 10, max_age: float = 1000) -> AsyncIterator[AnswerTable]:
    one = AnswerTable(folder / "gateway.sqlite", max_bytes=round(num_rows * ROW), max_age=timedelta(seconds=max_age))
    await one.open()
    try:
        yield one
    finally:
        await one.close()


async def add(store: Store, table: AnswerTable, key: str, size: int = ROW) -> str:
    """Keep a prediction of so many bytes, and its answer."""
    rest = sum(len(json.dumps(value)) for value in ({"text": ""}, ["é"], {}))
    prediction = Prediction(new_id(), "m", "v", {"text": "x" * (size - rest)}, now(), Status.SUCCEEDED, ["é"])
    await store.save(prediction)
    await table.keep(key, prediction.id)
    return prediction.id


async def test_an_answer_is_found_until_another_gateway_s_limits_say_otherwise(tmp_path, store):
    async with table(tmp_path) as one:
        ids = {key: await add(store, one, key) for key in ("a", "b")}
        assert {key: await one.find(key) for key in ("a", "b", "c")} == ids | {"c": None}
        assert one.num_bytes == 2 * ROW
    async with table(tmp_path) as one:
        assert (await one.find("a"), one.num_bytes) == (ids["a"], 2 * ROW), "after a restart"
    async with table(tmp_path, max_age=0) as one:
        assert (await one.find("a"), one.num_bytes) == (None, 0)


async def test_the_least_recently_used_go_first(tmp_path, store):
    async with table(tmp_path) as one:
        for key in "abcdefghij":
            await add(store, one, key)
        assert await one.find("a") is not None, "all fit"
        await add(store, one, "k")
        assert {key for key in "abcdefghijk" if await one.find(key)} == set("adefghijk"), "nine tenths are left"
        assert one.num_bytes == 9 * ROW


async def test_an_answer_that_takes_all_the_room_is_not_kept(tmp_path, store):
    async with table(tmp_path) as one:
        await add(store, one, "a")
        await add(store, one, "huge", size=10 * ROW)
        assert (await one.find("huge"), await one.find("a") is not None) == (None, True)


async def test_an_old_answer_is_not_found_although_it_was_just_used(tmp_path, store, monkeypatch):
    time = "2026-01-01T00:00:00.000000Z"
    async with table(tmp_path) as one:
        monkeypatch.setattr(answer_table, "now", lambda: time)
        await add(store, one, "a")
        monkeypatch.undo()
        await add(store, one, "b")
        assert (await one.find("a"), await one.find("b") is not None) == (None, True)


@pytest.mark.parametrize("how", ["one", "old"])
async def test_a_deleted_prediction_takes_its_answer_with_it(tmp_path, store, how):
    async with table(tmp_path) as one:
        prediction_id = await add(store, one, "a")
        await (store.delete(prediction_id) if how == "one" else store.delete_created_before("9"))
        assert await one.find("a") is None
        await one.keep("a", prediction_id)
        assert await one.find("a") is None, "deleted before its answer was kept"


@pytest.mark.parametrize("what", ["find", "keep"])
async def test_the_database_is_not_locked_while_the_event_loop_is_busy(tmp_path, store, what):
    async with table(tmp_path) as one:
        prediction_id = await add(store, one, "a")
        work = one.find("a") if what == "find" else one.keep("b", prediction_id)
        task = asyncio.create_task(work)
        await asyncio.sleep(0)  # it asks the table's thread
        time.sleep(0.1)
        with closing(sqlite3.connect(tmp_path / "gateway.sqlite", timeout=10, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        await task


async def test_a_table_that_cannot_be_opened_leaves_no_thread(tmp_path, store):
    before = set(threading.enumerate())
    with pytest.raises(OverflowError):
        await AnswerTable(tmp_path / "gateway.sqlite", max_bytes=1, max_age=timedelta.max).open()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
