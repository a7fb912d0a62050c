"""The gateway's benchmark sees every chunk of every stream, of a server alone and through the gateway."""

from __future__ import annotations

from lab.bench.gateway_clients import read_streams
from lab.bench.gateway_servers import gateway_server, stub_server


async def test_each_chunk_of_each_stream_is_seen_and_timed(tmp_path):
    with (
        stub_server(tmp_path, num_chunks=3, interval=0.1) as stub,
        gateway_server(tmp_path, stub, max_active=20) as gateway,
    ):
        alone = await read_streams(stub, None, count=5, num_chunks=3)
        behind = await read_streams(stub, gateway, count=5, num_chunks=3)
    assert (alone.missing, behind.missing) == (0, 0)
    assert len(alone.delays) == len(behind.delays) == 15
    assert min(alone.delays + behind.delays) > 0
