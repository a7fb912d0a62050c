"""A Cog server with nothing behind it, for measuring the door: it streams the time at even intervals.

Streams wait until somebody asks for /start, so that all are open before the first one sends.

python -m lab.bench.stub_cog PORT CHUNKS INTERVAL_SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping

_SCHEMA = {
    "info": {"version": "0"},
    "components": {
        "schemas": {
            "Input": {"properties": {"text": {"type": "string"}}},
            "Output": {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"},
        }
    },
}


class StubCog:
    """Answers what the door asks of a Cog server.

    Args:
        num_chunks: of each prediction.
        interval: seconds between two of them.
    """

    def __init__(self, num_chunks: int, interval: float) -> None:
        self._num_chunks = num_chunks
        self._interval = interval
        self._num_streams = 0
        self._start = asyncio.Event()

    async def serve(self, port: int) -> None:
        """Serve for ever."""
        async with await asyncio.start_server(self._answer, "127.0.0.1", port, backlog=2048) as server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            length = next((line for line in head.lower().splitlines() if line.startswith("content-length:")), ":0")
            await reader.readexactly(int(length.partition(":")[2]))
            if method == "PUT":
                await self._stream(path.rpartition("/")[2], writer)
            else:
                if path == "/start":
                    self._start.set()
                    self._start = asyncio.Event()  # for the next streams
                content = {"status": "READY"} if path == "/health-check" else _SCHEMA
                body = json.dumps(content).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stream(self, prediction_id: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self._num_streams += 1
        phase = self._num_streams * 0.618 % 1  # streams do not send at the same moment
        await self._start.wait()
        for number in range(self._num_chunks):
            await asyncio.sleep(self._interval * (1 if number else phase))
            _send(writer, "output", {"chunk": f"{time.monotonic():.6f} ", "index": number})
            await writer.drain()
        _send(writer, "completed", {"id": prediction_id, "status": "succeeded", "output": None, "logs": ""})


def _send(writer: asyncio.StreamWriter, name: str, data: Mapping[str, str | int | None]) -> None:
    writer.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())


if __name__ == "__main__":
    port, num_chunks, interval = sys.argv[1:]
    asyncio.run(StubCog(int(num_chunks), float(interval)).serve(int(port)))
