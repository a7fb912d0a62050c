"""What becomes of predictions when servers are full, break off or vanish, and when callers cancel or are slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from gateway.errors import TooManyPredictionsError
from gateway.pool import HEALTH_SECONDS, MAX_IMBALANCE, MAX_SILENT, RETURN_SECONDS
from gateway.predictions import Status
from gateway.runs import Finished, LogText, OutputPiece, Position, Run
from gateway.upstream import UpstreamEvent
from tests.gateway.fake_cog import FakeCog
from tests.gateway.running import door_to, first_piece, prediction, run, until


async def test_a_server_that_breaks_before_its_first_piece_is_replaced_unnoticed():
    async with FakeCog(break_after=0) as bad, FakeCog() as good, door_to(bad, good) as door:
        good.gate.set()
        final = await (await door.runner.start(prediction())).finished()
        assert (final.status, final.output) == (Status.SUCCEEDED, ["a", "b", "c"])
        assert bad.asked == good.asked == [final.id]


async def test_a_server_that_breaks_after_a_piece_fails_the_prediction_and_keeps_the_piece():
    async with FakeCog(break_after=1) as bad, FakeCog() as good, door_to(bad, good) as door:
        bad.gate.set()
        final = await (await door.runner.start(prediction())).finished()
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert "the server ended while it answered" in final.error
        assert good.asked == []


async def test_a_server_that_falls_silent_is_ejected_and_its_prediction_fails_within_ten_seconds():
    async with FakeCog() as cog, door_to(cog) as door:
        started = await door.runner.start(prediction())
        await first_piece(started)
        cog.is_silent, began = True, time.monotonic()
        await until(lambda: door.pool.healthy() is None)
        assert time.monotonic() - began < HEALTH_SECONDS + 5
        final = await started.finished()
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert final.error.count("no answer to health checks") == 1
        assert "no answer to health checks" not in door.pool.servers[0].trouble
        assert time.monotonic() - began < HEALTH_SECONDS + 10


async def test_a_server_that_takes_no_more_predictions_finishes_those_that_it_has():
    async with FakeCog() as old, FakeCog() as new, door_to(old, new) as door:
        started = await door.runner.start(prediction())
        await first_piece(started)
        old.drain()
        await until(lambda: not door.pool.servers[0].is_healthy)
        new.gate.set()
        assert (await run(door)).status is Status.SUCCEEDED
        with pytest.raises(TimeoutError):  # while several health checks fail
            await asyncio.wait_for(started.finished(), RETURN_SECONDS * (MAX_SILENT + 3))
        old.gate.set()
        final = await started.finished()
        assert (final.status, final.output) == (Status.SUCCEEDED, ["a", "b", "c"])
        assert (len(old.asked), len(new.asked)) == (1, 1)


async def test_a_full_server_is_asked_again_and_another_one_at_once():
    async with FakeCog(full=True) as full, FakeCog() as free, door_to(full, free) as door:
        free.gate.set()
        finals = await asyncio.gather(*[run(door) for _ in range(4)])
        assert {final.status for final in finals} == {Status.SUCCEEDED}
        full.full = False
        full.gate.set()
        free.full = True
        assert (await run(door)).status is Status.SUCCEEDED


async def test_predictions_go_to_the_server_with_the_fewest():
    async with FakeCog() as one, FakeCog() as two, door_to(one, two) as door:
        runs = [await door.runner.start(prediction()) for _ in range(6)]
        assert (len(one.asked), len(two.asked)) == (3, 3)
        one.gate.set()
        await until(lambda: sum(each.is_finished for each in runs) == 3)
        await door.runner.start(prediction())
        await door.runner.start(prediction())
        assert (len(one.asked), len(two.asked)) == (5, 3)
        two.gate.set()


async def test_equal_prefixes_share_a_server_until_it_has_too_many_more():
    async with FakeCog() as one, FakeCog() as two, door_to(one, two, prefix_inputs="text") as door:
        for _ in range(MAX_IMBALANCE + 1):
            await door.runner.start(prediction())
        assert sorted([len(one.asked), len(two.asked)]) == [0, MAX_IMBALANCE + 1]
        own, other = (one, two) if one.asked else (two, one)
        await door.runner.start(prediction())
        assert (len(own.asked), len(other.asked)) == (MAX_IMBALANCE + 1, 1)
        own.gate.set()
        other.gate.set()


async def test_different_prefixes_use_all_servers():
    async with FakeCog() as one, FakeCog() as two, door_to(one, two, prefix_inputs="text") as door:
        one.gate.set()
        two.gate.set()
        for number in range(40):
            text = replace(prediction(), input={"text": f"prefix {number}"})
            await (await door.runner.start(text)).finished()
        assert min(len(one.asked), len(two.asked)) > 5


async def test_a_server_that_went_away_gets_predictions_again_when_it_is_back():
    async with FakeCog() as server, door_to(server) as door:
        server.gate.set()
        await server.stop()
        await until(lambda: door.pool.healthy() is None)
        waiting = await door.runner.start(prediction())
        assert waiting.snapshot().status is Status.STARTING
        await server.listen(server.port)
        assert (await waiting.finished()).status is Status.SUCCEEDED


async def test_a_server_whose_health_check_fails_gets_no_predictions():
    async with FakeCog() as sick, FakeCog() as well, door_to(sick, well) as door:
        well.gate.set()
        sick.status = "UNHEALTHY"
        await until(lambda: not door.pool.servers[0].is_healthy)
        await asyncio.gather(*[run(door) for _ in range(3)])
        assert (len(sick.asked), len(well.asked)) == (0, 3)
        assert "UNHEALTHY" in door.pool.servers[0].trouble


async def test_cancelling_asks_the_server_and_ends_its_stream_when_it_does_not_obey():
    async with FakeCog() as server, door_to(server) as door:
        one = await door.runner.start(prediction())
        await first_piece(one)
        door.runner.cancel(one.id)
        final = await asyncio.wait_for(one.finished(), 20)
        assert (final.status, final.output, final.error) == (Status.CANCELED, ["a"], None)
        assert server.cancelled == [one.id]


async def test_a_waiting_prediction_is_cancelled_at_once_and_never_asked():
    async with FakeCog(full=True) as server, door_to(server) as door:
        server.status = "UNHEALTHY"
        await until(lambda: door.pool.healthy() is None)
        one = await door.runner.start(prediction())
        door.runner.cancel(one.id)
        assert (await one.finished()).status is Status.CANCELED
        assert server.asked == []
        assert door.pool.num_waiting == door.runner.num_active == 0


async def test_one_more_than_the_limit_is_refused():
    async with FakeCog() as server, door_to(server, max_active=2) as door:
        first, _ = [await door.runner.start(prediction()) for _ in range(2)]
        with pytest.raises(TooManyPredictionsError, match="2 predictions run or wait"):
            await door.runner.start(prediction())
        server.gate.set()
        await first.finished()
        await until(lambda: door.runner.num_active < 2)
        await door.runner.start(prediction())


async def test_a_prediction_that_takes_too_long_fails_and_frees_the_server():
    async with FakeCog() as server, door_to(server, max_seconds=0.2) as door:
        final = await run(door)
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert "over the limit of 0.2 seconds" in final.error
        server.gate.set()
        await until(lambda: server.open_streams == 0)


async def test_too_much_output_fails():
    async with FakeCog(pieces=("x" * 600,) * 3) as server, door_to(server, max_output_bytes=1024) as door:
        server.gate.set()
        final = await run(door)
        assert (final.status, len(final.output)) == (Status.FAILED, 1)
        assert "limit of 1,024 bytes" in final.error


async def test_a_door_that_stops_marks_what_still_runs():
    async with FakeCog() as server:
        async with door_to(server) as door:
            one = await door.runner.start(prediction())
            await first_piece(one)
        final = await one.finished()
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert final.error.startswith("interrupted")


async def test_readers_at_any_speed_and_position_see_the_same_events():
    """A reader that has not read yet costs nothing and holds nobody up; positions continue what was read."""
    one = Run(prediction(), max_bytes=10_000)
    lazy = one.follow()
    one.begin()
    for number in range(50):
        one.apply(UpstreamEvent("output", {"chunk": f"{number} "}))
        if number % 10 == 0:
            one.apply(UpstreamEvent("log", {"data": f"log {number}\n"}))
    one.finish(one.completed({"status": "succeeded"}))
    everything = [event async for event in lazy]
    assert "".join(event.value for event in everything if isinstance(event, OutputPiece)).split() == [
        str(number) for number in range(50)
    ]
    assert isinstance(everything[-1], Finished)
    assert everything[-1].prediction.logs == "".join(event.text for event in everything if isinstance(event, LogText))
    for number, event in enumerate(everything):
        assert [later async for later in one.follow(event.position)] == everything[number + 1 :] or number == len(
            everything
        ) - 1
    assert [later async for later in one.follow(Position(99, 9999))] == [Finished(one.snapshot(), Position(99, 9999))]


async def test_what_runs_is_saved_without_holding_others_up(tmp_path):
    """A large prediction is saved, and while saves pause after it a short one ends at once."""
    async with (
        FakeCog(pieces=("x" * 2_000_000, "y")) as slow,
        door_to(slow, keep=True, database=tmp_path / "door.sqlite") as door,
    ):
        large = await door.runner.start(prediction())
        async with asyncio.timeout(20):
            while (kept := await door.store.get(large.id)) is None or not kept.output:
                await asyncio.sleep(0.01)
        assert (kept.status, kept.output) == (Status.PROCESSING, ["x" * 2_000_000])
        slow.pieces = ("z",)
        slow.gate.set()
        assert (await asyncio.wait_for(run(door), 20)).output == ["z"]
        assert (await large.finished()).output == ["x" * 2_000_000, "y"]


async def test_only_line_feeds_end_a_line_of_a_servers_stream():
    """Cog sends other separators, such as U+2028, unescaped in JSON."""
    pieces = ("a\u2028b", "\u0085\u2029", "\x1cä\r\n")
    async with FakeCog(pieces=pieces) as cog, door_to(cog) as door:
        cog.gate.set()
        final = await (await door.runner.start(prediction())).finished()
        assert (final.status, final.output) == (Status.SUCCEEDED, [*pieces])
        assert door.pool.has_room, "the server is not ejected"
