"""Settings of one server process, read from the environment.

Frozen; a change is a new object (`settings.model_copy(update=…)`). Unknown keyword arguments fail, and
`create_engine` refuses a setting that the chosen engine would ignore.

    ENGINE=paged MAX_NUM_SEQS=8 scripts/serve
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from serving.weights.lock import default_weights_dir


class Settings(BaseSettings):
    """What an operator sets. Each field is an environment variable of the same name, upper case.

    Raises:
        ValidationError: an unknown keyword, or a value of the wrong type or out of range.
        WeightsError: `weights_dir` is not set, and the lock does not name exactly one set of weights.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    engine: str = Field("auto", description="auto, or an engine's name, such as paged or vllm")
    weights_lock: Path = Field(Path("weights.lock"), description="lock that the folder must match")
    weights_dir: Path = Field(
        default_factory=lambda known: _weights_of(known),
        description="folder of the checkpoint; by default weights/NAME beside the lock, NAME as in the lock",
    )
    max_num_seqs: int = Field(32, ge=1, le=1024, description="requests computed in one step")
    max_num_batched_tokens: int | None = Field(
        None, ge=16, description="tokens computed in one step; None is the engine's own, 512 for paged"
    )
    max_queue: int = Field(256, ge=1, description="requests that may wait; one more is refused")
    max_model_len: int | None = Field(None, ge=16, description="None takes the checkpoint's")
    block_size: int | None = Field(
        None, ge=1, description="tokens in a KV block; None is the engine's own, 16 for paged"
    )
    num_blocks: int | None = Field(None, ge=2, description="KV blocks; None sizes it for max_num_seqs")
    device: Literal["auto", "cpu", "cuda", "triton-interpreter"] = Field(
        "auto",
        description="what computes the model; auto: the GPU if there is one, otherwise the CPU; "
        "triton-interpreter runs the kernels for GPUs on the CPU, for tests",
    )
    num_threads: int | None = Field(None, ge=1, description="CPU threads; None takes all cores")
    prefix_caching: bool = Field(True, description="reuse the KV of prompts seen before")
    tensor_parallel_size: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="GPUs for vLLM; auto takes as many as can share the model evenly"
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of GPU memory in use; for vLLM without a GPU, of the machine's memory"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="auto: bfloat16 for vLLM on a CPU, float32 with 16-bit inputs for paged",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether vLLM compiles the model, and paged records CUDA graphs: slower to start, then faster; "
        "auto: on a GPU",
    )
    speculation: Literal["auto", "off", "ngram", "suffix"] = Field(
        "auto", description="how to draft tokens; ngram and suffix are vLLM's own ways"
    )
    max_draft_tokens: int | None = Field(
        None,
        ge=1,
        le=256,
        description="drafts of a request in one step, at most; None is the engine's own, 128 for paged",
    )

    engine_url: str | None = Field(None, description="address of the vLLM server that ENGINE=http asks")
    engine_model: str | None = Field(None, description="the server's name of the model; None: its only base model")
    engine_key: SecretStr | None = Field(None, description="API key of that server")

    adapters: Path | None = Field(None, description="list of adapters, adapters.yaml; None: there are none")
    adapter_memory_mb: int | None = Field(
        None, ge=1, description="memory of all loaded adapters, in MB; None is the engine's own, 1024 for paged"
    )
    adapter_sources: str | None = Field(
        None, description="prefixes of sources that requests may name as adapters, with commas; None: none"
    )
    adapter_cache_dir: Path | None = Field(None, description="folder of fetched adapters; None is ~/.cache/adapters")
    adapter_cache_mb: int | None = Field(None, ge=1, description="disk for fetched adapters, in MB; None is 10240")
    adapter_golden: bool = Field(
        True, description="ask an adapter the golden prompts of its folder, and refuse it if an answer is wrong"
    )
    max_loras: int | None = Field(
        None, ge=1, le=128, description="adapters in one step of vLLM, which reserves memory for each; None is 8"
    )

    token_trace: bool = Field(
        False, description="add the metric token_trace: where each token came from, by pass, where the engine knows it"
    )

    confidence: bool = Field(
        False,
        description="add the metric confidence: how sure the model is of each field of an answer under a constraint, "
        "where the engine knows it",
    )

    def is_set(self, name: str) -> bool:
        """Whether the operator asked for something by this setting: `auto` and None ask for nothing."""
        return name in self.model_fields_set and getattr(self, name) not in (None, "auto")


def _weights_of(known: dict[str, Any]) -> Path:
    """Where the weights of the lock are, of the settings validated so far."""
    # A lock that is itself invalid is reported instead, and this value is dropped.
    return default_weights_dir(known["weights_lock"]) if "weights_lock" in known else Path()
