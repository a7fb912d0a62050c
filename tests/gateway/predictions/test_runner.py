"""What becomes of predictions when servers are full, break off or vanish, callers cancel, or the disk is full."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest
from aiohttp import ClientTimeout

from gateway.errors import TooManyPredictionsError
from gateway.predictions.live_prediction import Finished, LivePrediction, LogText, OutputPiece, Position
from gateway.predictions.prediction import Prediction, Status
from gateway.predictions.runner import Runner
from gateway.predictions.store import Store
from gateway.upstream import model_server, pool
from tests.gateway.fake_cog import FakeCog
from tests.gateway.running import gateway_to, prediction, run, started, until


async def test_a_server_that_breaks_after_a_piece_that_somebody_has_seen_fails_the_prediction_and_keeps_the_piece():
    async with FakeCog(held=True, break_after=1) as bad, FakeCog() as good, gateway_to(bad, good) as gateway:
        one = await started(gateway)
        bad.gate.set()
        final = await one.finished()
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert "the server ended while it answered" in final.error
        assert good.asked == []


@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_a_prediction_of_which_no_client_has_seen_anything_begins_again_on_another_server(pieces):
    async with (
        FakeCog(pieces=("x", "y", "z"), break_after=pieces) as bad,
        FakeCog() as good,
        gateway_to(bad, good) as gateway,
    ):
        final = await run(gateway)
        assert (final.status, final.output) == (Status.SUCCEEDED, ["a", "b", "c"])
        assert bad.asked == good.asked == [final.id]


async def test_a_server_that_falls_silent_is_ejected_and_its_prediction_fails(monkeypatch):
    seconds = pool.HEALTH_SECONDS + pool.RETURN_SECONDS + pool.MAX_SILENT * model_server.HEALTH_TIMEOUT.total
    assert seconds < 10, "without the shorter time of this test"
    async with FakeCog(held=True) as cog, gateway_to(cog) as gateway:
        one = await started(gateway)
        cog.is_silent = True
        monkeypatch.setattr(model_server, "HEALTH_TIMEOUT", ClientTimeout(total=0.1))
        await until(lambda: gateway.pool.healthy() is None)
        final = await asyncio.wait_for(one.finished(), 60)
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert final.error.count("no answer to health checks") == 1
        assert "no answer to health checks" not in gateway.pool.servers[0].trouble


async def test_a_server_that_takes_no_more_predictions_finishes_those_that_it_has(monkeypatch):
    checks = []
    health = model_server.Upstream.health

    async def counted(server):
        checks.append(server.url)
        return await health(server)

    monkeypatch.setattr(model_server.Upstream, "health", counted)
    async with FakeCog(held=True) as old, FakeCog() as new, gateway_to(old, new) as gateway:
        one = await started(gateway)
        old.drain()
        await until(lambda: not gateway.pool.servers[0].is_healthy)
        assert (await run(gateway)).status is Status.SUCCEEDED
        checks.clear()
        await until(lambda: checks.count(old.url) > pool.MAX_SILENT + 2)
        assert not one.is_finished
        old.gate.set()
        final = await one.finished()
        assert (final.status, final.output) == (Status.SUCCEEDED, ["a", "b", "c"])
        assert (len(old.asked), len(new.asked)) == (1, 1)


async def test_a_full_server_is_asked_again_and_another_one_at_once():
    async with FakeCog(full=True) as full, FakeCog() as free, gateway_to(full, free) as gateway:
        finals = await asyncio.gather(*[run(gateway) for _ in range(4)])
        assert {final.status for final in finals} == {Status.SUCCEEDED}
        full.full, free.full = False, True
        assert (await run(gateway)).status is Status.SUCCEEDED


async def test_predictions_go_to_the_server_with_the_fewest():
    async with FakeCog(held=True) as one, FakeCog(held=True) as two, gateway_to(one, two) as gateway:
        runs = [await gateway.runner.start(prediction()) for _ in range(6)]
        assert (len(one.asked), len(two.asked)) == (3, 3)
        one.gate.set()
        await until(lambda: sum(each.is_finished for each in runs) == 3)
        for _ in range(2):
            await gateway.runner.start(prediction())
        assert (len(one.asked), len(two.asked)) == (5, 3)


async def test_a_burst_for_one_adapter_leaves_places_to_others_and_turns_to_those_that_wait():
    def ask(adapter: str, owner: str | None = None) -> Prediction:
        return replace(prediction(), input={"text": "hello", "adapter": adapter}, owner=owner)

    async with FakeCog(held=True) as server, gateway_to(server, concurrency=2) as gateway:
        burst = [await gateway.runner.start(ask("a")) for _ in range(5)]
        other = await gateway.runner.start(ask("b"))
        of_another_caller = await gateway.runner.start(ask("a", "bob"))
        later = [await gateway.runner.start(ask(adapter)) for adapter in ("b", "b")]
        assert server.asked == [burst[0].id, burst[1].id, other.id, of_another_caller.id]
        assert gateway.pool.num_waiting == 5
        server.gate.set()
        await asyncio.gather(*[run.finished() for run in (*burst, *later)])
        assert server.asked[4:] == [burst[2].id, later[0].id, burst[3].id, later[1].id, burst[4].id]


async def test_a_prediction_that_is_cancelled_while_it_waits_loses_its_turn_only():
    async with FakeCog(held=True) as server, gateway_to(server, concurrency=1) as gateway:
        runs = [await gateway.runner.start(prediction()) for _ in range(3)]
        gateway.runner.cancel(runs[1].id)
        assert (await runs[1].finished()).status is Status.CANCELED
        server.gate.set()
        await runs[2].finished()
        assert server.asked == [runs[0].id, runs[2].id]


async def test_equal_prefixes_share_a_server_until_it_has_too_many_more():
    async with (
        FakeCog(held=True) as one,
        FakeCog(held=True) as two,
        gateway_to(one, two, prefix_inputs="text") as gateway,
    ):
        for _ in range(pool.MAX_IMBALANCE + 1):
            await gateway.runner.start(prediction())
        assert sorted([len(one.asked), len(two.asked)]) == [0, pool.MAX_IMBALANCE + 1]
        await gateway.runner.start(prediction())
        assert sorted([len(one.asked), len(two.asked)]) == [1, pool.MAX_IMBALANCE + 1]


async def test_different_prefixes_use_all_servers():
    async with FakeCog() as one, FakeCog() as two, gateway_to(one, two, prefix_inputs="text") as gateway:
        for number in range(40):
            await (await gateway.runner.start(prediction(f"prefix {number}"))).finished()
        assert min(len(one.asked), len(two.asked)) > 5


async def test_a_server_that_went_away_gets_predictions_again_when_it_is_back():
    async with FakeCog() as server, gateway_to(server) as gateway:
        await server.stop()
        await until(lambda: gateway.pool.healthy() is None)
        waiting = await gateway.runner.start(prediction())
        assert waiting.snapshot().status is Status.STARTING
        await server.listen(server.port)
        assert (await waiting.finished()).status is Status.SUCCEEDED


async def test_a_server_whose_health_check_fails_gets_no_predictions():
    async with FakeCog() as sick, FakeCog() as well, gateway_to(sick, well) as gateway:
        sick.status = "UNHEALTHY"
        await until(lambda: not gateway.pool.servers[0].is_healthy)
        await asyncio.gather(*[run(gateway) for _ in range(3)])
        assert (len(sick.asked), len(well.asked)) == (0, 3)
        assert "UNHEALTHY" in gateway.pool.servers[0].trouble


async def test_cancelling_asks_the_server_and_ends_its_stream_when_it_does_not_obey():
    async with FakeCog(held=True) as server, gateway_to(server) as gateway:
        one = await started(gateway)
        gateway.runner.cancel(one.id)
        final = await asyncio.wait_for(one.finished(), 60)
        assert (final.status, final.output, final.error) == (Status.CANCELED, ["a"], None)
        assert server.cancelled == [one.id]


async def test_a_waiting_prediction_is_cancelled_at_once_and_never_asked():
    async with FakeCog() as server, gateway_to(server) as gateway:
        server.status = "UNHEALTHY"
        await until(lambda: gateway.pool.healthy() is None)
        one = await gateway.runner.start(prediction())
        gateway.runner.cancel(one.id)
        assert (await one.finished()).status is Status.CANCELED
        assert server.asked == []
        assert gateway.pool.num_waiting == gateway.runner.num_active == 0


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Prediction failed: Generator iteration error: InputError: nlq: is blank", "nlq: is blank"),
        ("Prediction failed: nlq: is blank", "nlq: is blank"),
        ("Prediction interrupted", "Prediction interrupted"),
    ],
)
async def test_an_error_is_shown_without_where_it_was_caught(said, shown):
    async with FakeCog(end={"status": "failed", "error": said}) as server, gateway_to(server) as gateway:
        assert (await run(gateway)).error == shown


async def test_one_more_than_the_limit_is_refused():
    async with FakeCog(held=True) as server, gateway_to(server, max_active=2) as gateway:
        first, _ = [await gateway.runner.start(prediction()) for _ in range(2)]
        with pytest.raises(TooManyPredictionsError, match="2 predictions run or wait"):
            await gateway.runner.start(prediction())
        server.gate.set()
        await first.finished()
        await until(lambda: gateway.runner.num_active < 2)
        await gateway.runner.start(prediction())


async def test_a_burst_whose_inputs_are_checked_meanwhile_stays_within_the_limit():
    async def check(inputs: object) -> None:
        await asyncio.sleep(0)

    async with FakeCog() as server, gateway_to(server) as gateway:
        await server.stop()
        await until(lambda: gateway.pool.healthy() is None)
        limits = {"max_active": 2, "max_output_bytes": 1000, "max_seconds": 60}
        runner = Runner(gateway.pool, gateway.store, check_inputs=check, prefix_inputs=(), **limits)
        started = await asyncio.gather(*[runner.start(prediction()) for _ in range(8)], return_exceptions=True)
        assert sum(isinstance(one, TooManyPredictionsError) for one in started) == 6
        await runner.close(0)


async def test_a_prediction_that_takes_too_long_fails_and_frees_the_server():
    async with FakeCog(held=True) as server, gateway_to(server, max_seconds=0.2) as gateway:
        final = await run(gateway)
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert "over the limit of 0.2 seconds" in final.error
        server.gate.set()
        await until(lambda: server.open_streams == 0)


async def test_too_much_output_fails():
    async with FakeCog(pieces=("x" * 600,) * 3) as server, gateway_to(server, max_output_bytes=1024) as gateway:
        final = await run(gateway)
        assert (final.status, len(final.output)) == (Status.FAILED, 1)
        assert "limit of 1,024 bytes" in final.error


async def test_a_gateway_that_stops_marks_what_still_runs():
    async with FakeCog(held=True) as server:
        async with gateway_to(server) as gateway:
            one = await started(gateway)
        final = await one.finished()
        assert (final.status, final.output) == (Status.FAILED, ["a"])
        assert final.error.startswith("interrupted")


async def test_readers_at_any_speed_and_position_see_the_same_events():
    """A reader that has not read yet costs nothing and holds nobody up; positions continue what was read."""
    one = LivePrediction(prediction(), max_bytes=10_000)
    lazy = one.follow()
    one.begin()
    for number in range(50):
        one.apply(model_server.UpstreamEvent("output", {"chunk": f"{number} "}))
        if number % 10 == 0:
            one.apply(model_server.UpstreamEvent("log", {"data": f"log {number}\n"}))
    one.finish(one.completed({"status": "succeeded"}))
    everything = [event async for event in lazy]
    pieces = [event.value for event in everything if isinstance(event, OutputPiece)]
    assert "".join(pieces).split() == [str(number) for number in range(50)]
    assert isinstance(everything[-1], Finished)
    assert everything[-1].prediction.logs == "".join(event.text for event in everything if isinstance(event, LogText))
    for number, event in enumerate(everything[:-1], start=1):
        assert [later async for later in one.follow(event.position)] == everything[number:]
    assert [later async for later in one.follow(Position(99, 9999))] == [Finished(one.snapshot(), Position(99, 9999))]


async def test_what_runs_is_saved_without_holding_others_up(tmp_path):
    """A large prediction is saved, and while saves pause after it a short one ends at once."""
    slow = FakeCog(held=True, pieces=("x" * 2_000_000, "y"))
    async with slow, gateway_to(slow, keep=True, database=tmp_path / "gateway.sqlite") as gateway:
        large = await started(gateway)

        async def is_kept():
            kept = await gateway.store.get(large.id)
            return (kept.status, kept.output) == (Status.PROCESSING, ["x" * 2_000_000])

        await until(is_kept)
        slow.pieces = ("z",)
        slow.gate.set()
        assert (await asyncio.wait_for(run(gateway), 60)).output == ["z"]
        assert (await large.finished()).output == ["x" * 2_000_000, "y"]


async def test_only_line_feeds_end_a_line_of_a_servers_stream():
    """Cog sends other separators, such as U+2028, unescaped in JSON."""
    pieces = ("a\u2028b", "\u0085\u2029", "\x1cä\r\n")
    async with FakeCog(pieces=pieces) as cog, gateway_to(cog) as gateway:
        final = await run(gateway)
        assert (final.status, final.output) == (Status.SUCCEEDED, [*pieces])
        assert gateway.pool.has_room(), "the server is not ejected"


class Full(Store):
    """A database that refuses the predictions for which `refuses` is true."""

    def refuses(self, one: Prediction) -> bool:
        return False

    async def save(self, *predictions: Prediction) -> None:
        if any(map(self.refuses, predictions)):
            raise sqlite3.OperationalError("database or disk is full")
        await super().save(*predictions)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.gateway.Store", Full)
    return {"keep": True, "database": tmp_path / "gateway.sqlite"}


async def test_a_save_that_failed_is_tried_again_although_nothing_has_changed(settings):
    failed = []
    async with FakeCog(held=True) as cog, gateway_to(cog, **settings) as gateway:
        gateway.store.refuses = lambda one: one.output and not failed and not failed.append(one)
        one = await started(gateway)

        async def is_kept():
            kept = await gateway.store.get(one.id)
            return (kept.status, kept.output) == (Status.PROCESSING, ["a"])

        await until(is_kept)
        assert len(failed) == 1


async def test_an_end_that_could_not_be_saved_is_shown_and_saved_later(settings):
    async with FakeCog() as cog, gateway_to(cog, **settings) as gateway:
        gateway.store.refuses = lambda one: one.status.is_final
        final, deleted = await run(gateway), await run(gateway)
        await until(lambda: gateway.runner.num_active == 0)
        assert await gateway.runner.get(final.id) == final
        assert (await gateway.store.get(final.id)).status is not Status.SUCCEEDED
        assert await gateway.runner.delete(deleted.id)
        del gateway.store.refuses

        async def is_saved():
            return await gateway.store.get(final.id) == final

        await until(is_saved)
        assert await gateway.runner.get(deleted.id) is None
