"""Checks that servers can listen on their ports before they are started."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.package.errors import PortError


@dataclass(frozen=True, slots=True)
class Listener:
    """Where one server will listen.

    Args:
        server: its name in messages.
        option: the option of the command that changes the port.
    """

    server: str
    host: str
    port: int
    option: str


def check_ports(listeners: Sequence[Listener]) -> None:
    """Listen at each address for a moment, at all of them together.

    Raises:
        PortError: one is taken or cannot be used; the message names the port and the option that changes it.
    """
    with contextlib.ExitStack() as opened:
        for one in listeners:
            family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
            try:
                listening = opened.enter_context(socket.socket(family))
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended do not matter
                listening.bind((one.host, one.port))
                listening.listen()
            except (OSError, OverflowError) as error:
                raise PortError(_message(one, error)) from error


def _message(one: Listener, error: OSError | OverflowError) -> str:
    place = f"port {one.port} on {one.host}, for {one.server},"
    reason = str(getattr(error, "strerror", None) or error).rstrip(".")
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{place} is in use; end the other server, or choose another port with {one.option}"
    if isinstance(error, OSError) and (error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)):
        return f"{place} cannot be used: {reason}; choose an address of this machine with --host"
    return f"{place} cannot be used: {reason}; choose another port with {one.option}"
