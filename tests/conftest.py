"""Settings of all tests: no deadline for one example of a property test, and SIGINT as in a terminal."""

from __future__ import annotations

import signal
from importlib.util import find_spec

# Processes that a shell starts in the background ignore SIGINT, and so do their children. Some tests send it to
# commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):  # the environment with vLLM has none
    from hypothesis import settings

    settings.register_profile("no_deadline", deadline=None)  # a busy machine may take any time
    settings.load_profile("no_deadline")
