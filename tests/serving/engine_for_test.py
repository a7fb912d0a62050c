"""A minimal module that `create_engine` accepts."""

from __future__ import annotations

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engines.fake.engine import FakeEngine
from tests import tiny_tokenizers


def create(settings: Settings, checkpoint: Checkpoint) -> FakeEngine:
    engine = FakeEngine(tiny_tokenizers.byte_level(), max_model_len=settings.max_model_len or 1)
    engine.close()
    return engine
