"""The least that `create_engine` wants of a module."""

from __future__ import annotations

from serving.config import Settings
from serving.fake_engine import FakeEngine
from tests import tiny_tokenizers


def create(settings: Settings) -> FakeEngine:
    engine = FakeEngine(tiny_tokenizers.byte_level(), max_model_len=settings.max_model_len or 1)
    engine.close()
    return engine
