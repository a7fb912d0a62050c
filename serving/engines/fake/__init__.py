"""An engine without a model, for tests."""

from serving.engines.fake.engine import FakeEngine, create

__all__ = ["FakeEngine", "create"]
