"""The rows of the endurance run, in their order."""

from __future__ import annotations

from typing import Final

from pipeline.endurance.cancel_storm import cancel_storm
from pipeline.endurance.damaged_weights import damaged_weights
from pipeline.endurance.engine_death import engine_death
from pipeline.endurance.fuzz import fuzz
from pipeline.endurance.hostile_grammars import hostile_grammars
from pipeline.endurance.overload import overload
from pipeline.endurance.restarts import restarts
from pipeline.endurance.row import Row
from pipeline.endurance.rude_clients import rude_clients
from pipeline.endurance.same_id import same_id
from pipeline.endurance.scarce_resources import scarce_resources
from pipeline.endurance.small_cache import small_cache
from pipeline.endurance.soak import soak
from pipeline.endurance.stream_parity import stream_parity
from pipeline.endurance.supply_chain import supply_chain

ROWS: Final = (
    Row("cancel", "cancel storm", cancel_storm),
    Row("soak", "soak", soak),
    Row("cache", "KV cache at 25 % of demand", small_cache),
    Row("death", "engine killed, stopped", engine_death),
    Row("restart", "SIGTERM, SIGKILL and restart", restarts),
    Row("overload", "overload ×10", overload),
    Row("id", "the same id many times at once", same_id),
    Row("rude", "rude clients", rude_clients),
    Row("weights", "damaged weights", damaged_weights),
    Row("scarce", "full disk, little memory", scarce_resources),
    Row("fuzz", "fuzz", fuzz),
    Row("grammar", "hostile schemas", hostile_grammars),
    Row("stream", "stream parity", stream_parity),
    Row("supply", "supply chain", supply_chain),
)
