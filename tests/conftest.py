"""Settings of all tests: no deadline for a property's example, SIGINT as in a terminal, Triton without a GPU."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

from serving.devices import has_cuda_device

# Processes that a shell starts in the background ignore SIGINT, and so do their children. Some tests send it to
# commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):  # the environment with vLLM has none
    from hypothesis import settings

    settings.register_profile("no_deadline", deadline=None)  # a busy machine may take any time
    settings.load_profile("no_deadline")

# Triton reads this when it is first imported, by whatever test. With a GPU its kernels are compiled.
if find_spec("triton") and not has_cuda_device():
    os.environ["TRITON_INTERPRET"] = "1"
