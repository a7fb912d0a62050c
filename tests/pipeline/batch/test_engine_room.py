"""How many engines a cluster gets, and what each may use."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.batch.engine_room import Room, find_room
from pipeline.batch.errors import BatchError
from serving.config import Settings

HEAD = {"memory": 1e9}  # takes no work
SMALL, LARGE = {"CPU": 8.0}, {"CPU": 32.0}
CARDS = {"CPU": 32.0, "GPU": 4.0}


def settings(**given: Any) -> Settings:
    return Settings(weights_dir="weights", **{"engine": "paged", **given})


@pytest.mark.parametrize(
    ("machines", "engines", "given", "room"),
    [
        ([SMALL], None, {}, Room(1, 8.0, 0, None)),
        ([HEAD, SMALL, LARGE], None, {}, Room(2, 8.0, 0, None)),
        ([SMALL], 3, {}, Room(3, 2.0, 0, 2)),
        ([SMALL], 16, {}, Room(16, 0.5, 0, 1)),
        ([SMALL], 3, {"engine": "http"}, Room(3, 2.0, 0, None)),
        ([SMALL, CARDS, CARDS], None, {"engine": "vllm"}, Room(8, 8.0, 1, None)),
        ([CARDS, CARDS], None, {"engine": "vllm", "tensor_parallel_size": 4}, Room(2, 32.0, 4, None)),
        ([CARDS, CARDS], 1, {"engine": "auto"}, Room(1, 32.0, 1, None)),
        ([CARDS], None, {"device": "cpu"}, Room(1, 32.0, 0, None)),
    ],
)
def test_engines_share_what_there_is(machines, engines, given, room: Room) -> None:
    assert find_room(machines, engines, settings(**given), "--engines") == room


@pytest.mark.parametrize(
    ("machines", "engines", "given", "message"),
    [
        ([HEAD], None, {}, "ray start"),
        ([CARDS], 5, {}, "4 GPUs are too few for --engines 5, with 1 each; there is room for 4"),
        ([CARDS], None, {"engine": "vllm", "tensor_parallel_size": 8}, "too few for one engine, with 8 each"),
    ],
)
def test_too_many_engines_are_refused(machines, engines, given, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        find_room(machines, engines, settings(**given), "--engines")
