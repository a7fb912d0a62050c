"""Plugs our drafter into vLLM: the worker and the proposer that vLLM's configuration names.

Only this file knows the parts of vLLM that the drafter needs. They are no public interface: `draft_config.WRITTEN_FOR`
is the version they were taken from. On another version, or after any error, vLLM goes on without drafts, and its log
says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm.logger import init_logger
from vllm.platforms import current_platform

from serving.devices import available_memory, keep_freed_memory
from serving.drafting.draft_model import DraftModel
from serving.engines.vllm.batch_drafts import BatchDrafts, DraftRow
from serving.engines.vllm.draft_config import PROPOSER, WORKER, drafts_that_fit, version_fault
from serving.weights.draft_weights import DRAFT_MODEL

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker

    _PRIOR_ROW_COST = 0.06  # the default model's on two cores; replaced by measurements
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker

    _PRIOR_ROW_COST = 0.005

from vllm.v1.sample import rejection_sampler  # after the CPU worker, which must be first

_log = init_logger("vllm.drafts")  # below "vllm", whose log has a handler


class DraftProposer:
    """What vLLM asks for drafts; `speculative_config["model"]` names it."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._runner: Any = None
        self._drafts: BatchDrafts | None = None
        self._off: str | None = f"worker_cls is not {WORKER}"  # until `attach`; then None, or an error
        self._has_logged = False
        self._start = 0.0
        self._rows: int | None = None  # rows of the step that runs; None if it computes prompts
        self._verified: dict[str, list[int]] = {}
        self._free_bytes: int | None = None  # None while it is unknown
        self._adapter_models: dict[int, DraftModel] = {}  # by vLLM's number of the adapter

    def load_model(self, model: Any) -> None:
        """Called by vLLM, which loads a draft model here; ours is loaded by `attach`."""

    def attach(self, runner: Any) -> None:
        """Load the drafter for a model runner that has loaded its model."""
        from vllm.distributed import get_tensor_model_parallel_rank

        self._runner, self._off = runner, version_fault(vllm.__version__)
        # With tensor parallelism, vLLM takes the drafts of the first rank and passes them to all.
        if self._off is None and get_tensor_model_parallel_rank() == 0:
            with self._off_after_errors():
                self._drafts = self.load_drafts()
                path = Path(self._config.model_config.model) / DRAFT_MODEL
                note = f"with {path}" if path.is_file() else f"without a draft model, because {path} is not there"
                _log.info("Drafts by %s, at most %d of a request in a step, %s", PROPOSER, self._max_drafts, note)
        self._log_if_off()

    def load_drafts(self) -> BatchDrafts:
        """Load the drafter of the checkpoint that vLLM has loaded. `attach` logs its errors and goes on without it."""
        # Imports here: their errors must not reach vLLM.
        import llguidance.hf
        from vllm.tokenizers import cached_tokenizer_from_config

        from serving.drafting.load_drafter import DraftModelLoader, load_drafter, read_input_embedding
        from serving.drafting.speculative import LinearCost, MeasuredCost
        from serving.engines.vllm.batch_drafts import DraftGrammars
        from serving.text import Tokenizer

        tokenizer = cached_tokenizer_from_config(self._config.model_config)
        vocab_size = self._config.model_config.get_vocab_size()
        vocabulary = llguidance.hf.from_tokenizer(tokenizer, max(vocab_size, len(tokenizer)))
        folder, cost = Path(self._config.model_config.model), MeasuredCost(LinearCost(_PRIOR_ROW_COST))
        models = DraftModelLoader(Tokenizer.from_transformers(tokenizer), lambda: read_input_embedding(folder))
        return BatchDrafts(
            load_drafter(folder, models, cost),
            begin_grammar=DraftGrammars(vocabulary).begin,
            cost=cost,
            vocab_size=min(vocab_size, len(tokenizer)),
            load_model=models.load,
        )

    def begin_serving(self, free_bytes: int | None) -> None:
        """Called before the first step, when the limit of the context is known and the KV cache has its memory.

        `free_bytes` is the memory that steps can take; None if it is unknown.
        """
        if version_fault(vllm.__version__) is not None:
            return
        with self._off_after_errors():
            # As soon as the most drafts of one request could pass the limit of the context, vLLM would not ask for any
            # drafts, but draft token 0 for all requests, also for those that must not get any. `_row` keeps the limit.
            self._runner.effective_drafter_max_model_len = self._runner.max_model_len + self._runner.num_spec_tokens
            self._free_bytes = free_bytes
            most = int(self._config.scheduler_config.max_num_seqs)
            if (limit := self._max_drafts_of(most)) < self._max_drafts:
                _log.info("For lack of memory at most %d drafts of a request in a step with %d requests", limit, most)
        self._log_if_off()

    def add_adapter(self, lora: Any) -> None:
        """Load the draft model in the folder of an adapter that vLLM has loaded, if there is one."""
        path = Path(lora.lora_path) / DRAFT_MODEL
        if self._drafts is None or not path.is_file():
            return
        try:
            self._adapter_models[lora.lora_int_id] = self._drafts.load_model(path)
        except Exception as error:  # if it reached vLLM, the adapter would be lost
            _log.warning("%s is ignored: %s", path, error)

    def remove_adapter(self, number: int) -> None:
        """Free the draft model of an adapter that vLLM has removed."""
        self._adapter_models.pop(number, None)

    def begin_step(self, scheduler_output: Any) -> None:
        """Note what a step is about to verify, and the time."""
        self._verified = dict(scheduler_output.scheduled_spec_decode_tokens)
        rows = len(scheduler_output.num_scheduled_tokens) + sum(map(len, self._verified.values()))
        self._rows = rows if rows == scheduler_output.total_num_scheduled_tokens else None
        self._start = time.perf_counter()

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Called by vLLM after each step.

        Args:
            sampled_token_ids: the step's tokens of each request in the batch; empty in the middle of a prompt.
            num_tokens_no_spec: [batch], lengths of prompt and output.
            token_ids_cpu: [batch, max_model_len], unused, because the runner has the tokens too.
            slot_mappings: unused.

        Returns:
            The drafts of each request.
        """
        drafts: list[list[int]] | None = None
        if self._drafts is not None:
            with self._off_after_errors():
                if self._rows is not None:
                    self._drafts.add_step(rows=self._rows, seconds=time.perf_counter() - self._start)
                ids = self._runner.input_batch.req_ids[: len(sampled_token_ids)]
                rows = [
                    self._row(*row) for row in zip(ids, sampled_token_ids, num_tokens_no_spec.tolist(), strict=False)
                ]
                requests = self._runner.requests
                drafts = self._drafts.propose(rows, verified=self._verified, running=requests.keys())
        self._log_if_off()
        return [[] for _ in sampled_token_ids] if drafts is None else drafts

    @property
    def _max_drafts(self) -> int:
        return min(int(self._config.speculative_config.num_speculative_tokens), int(rejection_sampler.MAX_SPEC_LEN))

    def _max_drafts_of(self, num_requests: int) -> int:
        """Limit of the drafts of a request in a step with so many requests."""
        if self._free_bytes is None:
            return self._max_drafts
        vocab_size = int(self._config.model_config.get_vocab_size())
        fitting = drafts_that_fit(self._free_bytes, vocab_size=vocab_size, num_requests=num_requests)
        return min(self._max_drafts, fitting)

    def _row(self, request_id: str, sampled: Sequence[int], num_tokens: int) -> DraftRow | None:
        request = self._runner.requests[request_id]
        params = request.sampling_params
        if not sampled or request.prompt_token_ids is None or params is None:
            return None
        limits = [
            self._max_drafts_of(len(self._runner.requests)),
            self._config.model_config.max_model_len - num_tokens - 1,
        ]
        if params.max_tokens is not None:
            limits.append(params.max_tokens - len(request.output_token_ids) - 1)
        if params.seed is not None and params.temperature > 0:
            limits.append(0)  # which random number decides about a token depends on the drafts before it
        lora = request.lora_request
        return DraftRow(
            request_id,
            request.prompt_token_ids,
            request.output_token_ids,
            num_new=len(sampled),
            end_token_ids=params.all_stop_token_ids | {params.eos_token_id},
            grammar=_grammar_text(params.structured_outputs, self._config.structured_outputs_config),
            adapter=None if lora is None else lora.lora_name,
            max_drafts=min(limits),
            draft_model=None if lora is None else self._adapter_models.get(lora.lora_int_id),
        )

    @contextmanager
    def _off_after_errors(self) -> Iterator[None]:
        """An exception of the drafter ends it; if it reached vLLM, it would end the engine."""
        try:
            yield
        except Exception as error:
            _log.exception("The drafter failed")
            self._drafts, self._off = None, f"{type(error).__name__}: {error}"

    def _log_if_off(self) -> None:
        if self._off is not None and not self._has_logged:
            _log.warning("vLLM continues without drafts: %s", self._off)
            self._has_logged = True


class DraftWorker(_Worker):  # type: ignore[misc]
    """vLLM's worker, which gives the model runner to our proposer and mends four faults of vLLM 0.32.

    The end of the context: see `DraftProposer.begin_serving`. Steps without drafts: see `apply_sampling_constraints`.
    The other two are of the CPU only.

    Seeds: a step samples a token for every request, even in the middle of its prompt, and discards it. vLLM then sets
    the request's random generator back by one number, which PyTorch's CPU generators do not support: the worker fails,
    and with it the engine. Here a request in the middle of its prompt draws no number at all.

    Sampling with drafts: see `expand_batch_to_tokens`.
    """

    def init_device(self) -> None:
        """Do what vLLM's method does."""
        rejection_sampler.apply_sampling_constraints = apply_sampling_constraints
        if current_platform.is_cpu():
            rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        super().init_device()

    def load_model(self, **options: Any) -> None:
        """Like vLLM's method; then loads the drafter."""
        super().load_model(**options)
        if current_platform.is_cpu():
            keep_freed_memory()  # a step has three copies of its logits: 100 MB each for 500 drafts
        if (proposer := self._proposer()) is not None:
            proposer.attach(self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        """Like vLLM's method, the last before the first step."""
        times = super().compile_or_warm_up_model()
        if (proposer := self._proposer()) is not None:
            proposer.begin_serving(_free_bytes())
        return times

    def add_lora(self, lora_request: Any) -> bool:
        """Like vLLM's method; then loads the adapter's draft model."""
        added: bool = super().add_lora(lora_request)
        if (proposer := self._proposer()) is not None:
            proposer.add_adapter(lora_request)
        return added

    def remove_lora(self, lora_id: int) -> bool:
        """Like vLLM's method; then frees the adapter's draft model."""
        removed: bool = super().remove_lora(lora_id)
        if (proposer := self._proposer()) is not None:
            proposer.remove_adapter(lora_id)
        return removed

    def execute_model(self, scheduler_output: Any) -> Any:
        """Do what vLLM's method does."""
        if (proposer := self._proposer()) is not None:
            proposer.begin_step(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Like vLLM's method; on a CPU with the generators of unfinished prompts removed during the call."""
        if self.use_v2_model_runner or not current_platform.is_cpu():
            return super().sample_tokens(grammar_output)
        runner = self.model_runner
        generators = runner.input_batch.generators
        unfinished = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])
        held = {place: generators.pop(place) for place in unfinished.tolist() if place in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(held)

    def _proposer(self) -> DraftProposer | None:
        drafter = getattr(self.model_runner, "drafter", None)
        return drafter if isinstance(drafter, DraftProposer) else None


def _free_bytes() -> int | None:
    """Memory of the device that nothing uses; None if it is unknown."""
    if current_platform.is_cpu():
        return available_memory() or None
    torch.cuda.empty_cache()  # what torch has kept of freed tensors counts as free
    return torch.cuda.mem_get_info()[0]


_vllm_sampling_constraints = rejection_sampler.apply_sampling_constraints


def apply_sampling_constraints(
    logits: torch.Tensor, cu_num_draft_tokens: torch.Tensor, sampling_metadata: Any
) -> torch.Tensor:
    """Apply temperature, top-k and top-p to the logits of drafts: vLLM's function, also for a step without drafts.

    vLLM's own takes the largest top-k of no rows, an error that ends the engine, when the grammar has cut all drafts
    of a step.

    Args:
        logits: [num_drafts, vocab_size].
        cu_num_draft_tokens: [batch], cumulative numbers of drafts.
        sampling_metadata: the batch's parameters.

    Returns:
        [num_drafts, vocab_size].
    """
    if len(logits) == 0:
        return logits
    constrained: torch.Tensor = _vllm_sampling_constraints(logits, cu_num_draft_tokens, sampling_metadata)
    return constrained


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Repeat a parameter of each request for each of its drafts: vLLM's function for the CPU.

    vLLM's own fills a copy of the result and drops it. So as soon as one request of a batch with drafts is sampled,
    logits are divided by uninitialised memory, and greedy requests beside it get wrong answers too.

    Args:
        x: [batch].
        cu_num_tokens: [batch], cumulative numbers of drafts.
        num_tokens: their sum.
        replace_from: a value of `x` to replace.
        replace_to: what replaces it.

    Returns:
        [num_tokens], of the type of `x`.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return torch.repeat_interleave(replaced, counts.long(), output_size=num_tokens)


def _grammar_text(params: Any, config: Any) -> str | None:
    """The grammar of a request as vLLM's guidance backend gives it to llguidance; None without one."""
    from vllm.v1.structured_output.request import get_structured_output_key

    if params is None:
        return None
    kind, text = get_structured_output_key(params)
    return _serialized(kind, text, config.disable_any_whitespace, config.disable_additional_properties)


@lru_cache(64)
def _serialized(kind: Any, text: str, *options: bool) -> str | None:
    from vllm.v1.structured_output.backend_guidance import serialize_guidance_grammar

    try:
        grammar: str = serialize_guidance_grammar(kind, text, *options)
    except (ValueError, KeyError, TypeError):  # another backend of vLLM wrote it
        return None
    return grammar
