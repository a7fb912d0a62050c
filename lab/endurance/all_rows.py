"""The rows of the endurance run, in their order."""

from __future__ import annotations

from typing import Final

from lab.endurance.cancel_storm import cancel_storm
from lab.endurance.damaged_weights import damaged_weights
from lab.endurance.engine_death import engine_death
from lab.endurance.fuzz import fuzz
from lab.endurance.hostile_grammars import hostile_grammars
from lab.endurance.overload import overload
from lab.endurance.restarts import restarts
from lab.endurance.row import Row
from lab.endurance.rude_clients import rude_clients
from lab.endurance.same_id import same_id
from lab.endurance.scarce_resources import scarce_resources
from lab.endurance.small_cache import small_cache
from lab.endurance.soak import soak
from lab.endurance.stream_parity import stream_parity
from lab.endurance.supply_chain import supply_chain

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
