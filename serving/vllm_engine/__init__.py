"""vLLM behind the Engine protocol; `engine` is the place to start reading.

engine = create(Settings(engine="vllm"))
"""

from serving.vllm_engine.engine import VllmEngine, create

__all__ = ["VllmEngine", "create"]
