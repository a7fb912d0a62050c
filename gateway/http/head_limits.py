"""Limits the time and size of a request's head, which uvicorn does not."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10  # of request line and headers


def limited_protocol(head_seconds: float) -> type[HttpToolsProtocol]:
    """A protocol class for `uvicorn.Config(http=…)`.

    Args:
        head_seconds: the time from a connection, or from a request's first byte, to the end of the request's headers.
    """

    class LimitedProtocol(HttpToolsProtocol):
        """Closes connections whose request line and headers are too slow or too large."""

        _timer: asyncio.TimerHandle | None = None
        _in_head = False
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(431, f"the request's headers are over {MAX_HEAD_BYTES:,} bytes")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            if self._timer is None:
                self._start_timer()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._stop_timer()
            super().on_headers_complete()

        def _start_timer(self) -> None:
            text = f"the request's headers were not complete after {head_seconds:g} seconds"
            self._timer = self.loop.call_later(head_seconds, self._refuse, 408, text)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: int, text: str) -> None:
            self._stop_timer()
            if self.transport.is_closing():
                return
            body = f"{text}\n".encode()
            head = f"content-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()

    return LimitedProtocol
