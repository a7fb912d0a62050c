"""Our settings and sampling parameters in vLLM's words.

Owns: every name of vLLM's configuration that this package uses, and the environment variables
that vLLM reads when it is imported. Facts about its CPU build are in docs/engines.md.

    llm = AsyncLLM.from_engine_args(engine_args(settings))
"""

from __future__ import annotations

import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any

import llguidance

from serving.config import Settings
from serving.errors import EngineNotAvailableError, GrammarError
from serving.text import Tokenizer
from serving.types import GenerationRequest
from serving.vllm_engine.tokenizer_folder import tokenizer_folder

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import SamplingParams

_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is the answer's
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes most of the memory
    "VLLM_CPU_INT4_W4A8": "0",  # 8-bit activations change greedy answers
}


def set_environment(num_threads: int | None = None) -> None:
    """Fill in what vLLM reads from the environment; what the operator set stays. Before the import.

    Args:
        num_threads: of its CPU build; None takes every core that this process may use.
    """
    cores = sorted(os.sched_getaffinity(0))
    for name, value in {**_ENVIRONMENT, **_threads(num_threads, cores)}.items():
        os.environ.setdefault(name, value)


def _threads(num_threads: int | None, cores: list[int]) -> dict[str, str]:
    if num_threads is None or num_threads >= len(cores):
        return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}  # `auto` leaves cores out
    # Not bound: whoever leaves cores to others cannot know which ones those will use.
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(num_threads)}


def engine_args(settings: Settings) -> AsyncEngineArgs:
    """vLLM's arguments.

    Raises:
        EngineNotAvailableError: this machine's vLLM cannot run this checkpoint; says what can.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    is_cpu = current_platform.is_cpu()
    if is_cpu:
        _check_cpu_has_awq(settings)
    return AsyncEngineArgs(
        model=str(settings.weights_dir),
        tokenizer=str(tokenizer_folder(Tokenizer.from_dir(settings.weights_dir))),
        dtype=settings.dtype if settings.dtype != "auto" else ("bfloat16" if is_cpu else "auto"),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        enable_prefix_caching=settings.prefix_caching,
        tensor_parallel_size=_tensor_parallel_size(settings, is_cpu),
        gpu_memory_utilization=settings.gpu_memory_utilization,
        speculative_config=_speculation(settings),
        structured_outputs_config={"backend": "guidance"},
        generation_config="vllm",  # the checkpoint's own sampling defaults would change what was asked for
        enforce_eager=is_cpu,  # on a CPU compiling costs 40 s of start
        enable_log_requests=False,
        disable_log_stats=True,
    )


def sampling_params(
    request: GenerationRequest, *, tokenizer: Tokenizer, max_model_len: int
) -> SamplingParams:
    """vLLM's sampling parameters. Stop strings are not among them: our detokenizer finds those.

    Raises:
        GrammarError: the grammar does not compile; found here, so that vLLM's core never sees it.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    ours = request.sampling
    structured = None
    # vLLM counts the end token, we do not. Only a grammar makes the difference visible: an answer that
    # is complete with its last token is complete, so it gets the place for the end token.
    places_for_end = 0
    if request.grammar is not None:
        check_grammar(request.grammar)
        structured = StructuredOutputsParams(grammar=request.grammar)
        places_for_end = 1
    return SamplingParams(
        max_tokens=min(ours.max_tokens + places_for_end, max_model_len - len(request.prompt_token_ids)),
        temperature=ours.temperature,
        top_p=ours.top_p,
        top_k=ours.top_k if ours.top_k is not None else 0,
        seed=ours.seed,
        stop_token_ids=list(tokenizer.eos_token_ids),
        structured_outputs=structured,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def check_grammar(grammar: str) -> None:
    """Compile without a tokenizer, which is enough to find every error.

    Raises:
        GrammarError: with llguidance's own words.
    """
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar)
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(compiled)
    if is_error:
        raise GrammarError(f"the grammar does not compile: {messages[0]}")


def _check_cpu_has_awq(settings: Settings) -> None:
    """vLLM's CPU build has its AWQ kernel for AVX512 only, and dies in the first pass without it."""
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


def _tensor_parallel_size(settings: Settings, is_cpu: bool) -> int:
    if settings.tensor_parallel_size != "auto":
        return settings.tensor_parallel_size
    if is_cpu:
        return 1
    import torch

    return torch.cuda.device_count()


def _speculation(settings: Settings) -> dict[str, Any] | None:
    if settings.speculation == "ngram":
        return {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    if settings.speculation == "suffix":
        if importlib.util.find_spec("arctic_inference") is None:
            raise EngineNotAvailableError(
                "SPECULATION=suffix needs arctic-inference; docs/engines.md says how to install it"
            )
        return {"method": "suffix"}
    return None
