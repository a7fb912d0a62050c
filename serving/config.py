"""Settings of one server process, read from the environment.

Owns: names, defaults and limits of what an operator may set. Frozen; a change is a new object
(`settings.model_copy(update=…)`). Unknown keyword arguments fail.

    ENGINE=paged MAX_NUM_SEQS=8 scripts/serve
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What an operator sets. Each field is an environment variable of the same name, upper case."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    engine: str = Field("auto", description="auto, paged, vllm or fake")
    weights_dir: Path = Field(Path("weights/honeycomb-nlq"), description="folder of the checkpoint")
    weights_lock: Path = Field(Path("weights.lock"), description="lock that the folder must match")
    max_num_seqs: int = Field(32, ge=1, le=1024, description="requests computed in one step")
    max_num_batched_tokens: int = Field(512, ge=16, description="tokens computed in one step")
    max_queue: int = Field(256, ge=1, description="requests that may wait; one more is refused")
    max_model_len: int | None = Field(None, ge=16, description="None takes the checkpoint's")
    block_size: int = Field(16, ge=1, description="tokens in a KV block")
    num_blocks: int | None = Field(None, ge=2, description="KV blocks; None sizes it for max_num_seqs")
    num_threads: int | None = Field(None, ge=1, description="CPU threads; None takes all cores")
    prefix_caching: bool = Field(True, description="reuse the KV of prompts seen before")
    tensor_parallel_size: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="GPUs for vLLM; auto takes all there are"
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of GPU memory for vLLM")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 for vLLM on a CPU, float32 with 16-bit inputs for paged",
    )
    speculation: Literal["auto", "off", "ngram", "suffix"] = Field(
        "auto", description="how to guess tokens ahead; ngram and suffix are vLLM's, where auto is off"
    )
    max_draft_tokens: int = Field(128, ge=1, le=256, description="guesses of a request in one step, at most")
