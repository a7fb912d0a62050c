"""Ports for the servers of tests. A server that is given one finds it free, whatever else runs."""

from __future__ import annotations

import itertools
import os
import random
import socket

# Below the ports that Linux gives to those who name none, so that no connection takes one meanwhile.
_FIRST, _PER_WORKER = 20_000, 1_000
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
_next = itertools.count(random.randrange(_PER_WORKER))


def free_port() -> int:
    """A port that nobody listens on, and that no other process of this test run is given."""
    for _ in range(_PER_WORKER):
        port = _FIRST + _worker * _PER_WORKER + next(_next) % _PER_WORKER
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise OSError("all ports of this worker are taken")
