"""Settings of all tests: property tests have no deadline for one example, because a busy machine may take any time."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("hypothesis"):  # the environment with vLLM has none
    from hypothesis import settings

    settings.register_profile("no_deadline", deadline=None)
    settings.load_profile("no_deadline")
