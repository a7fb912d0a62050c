"""The engine that runs vLLM; start reading at `engine`."""

from serving.engines.vllm.engine import VllmEngine, create

__all__ = ["VllmEngine", "create"]
