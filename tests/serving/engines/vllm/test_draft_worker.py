"""What the plug-in takes from vLLM, what it mends there, and that its errors end the drafts only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.engines.vllm.draft_config import WRITTEN_FOR, draft_config, version_fault
from serving.errors import WeightsError
from serving.weights.draft_weights import DRAFT_MODEL
from tests.serving.models import tiny_checkpoints

# vLLM looks at every attribute of every module when it registers its kernels, torch's deprecated ones too.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def one_process(monkeypatch) -> None:
    """As where vLLM has started its only worker."""
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: 0)


class NoDrafts:
    """Notes the rows that drafts are asked for."""

    rows: Sequence[Any] = ()

    def load_model(self, path: Path) -> Any:
        """What the file says, in place of a draft model."""
        if not (text := path.read_text()):
            raise WeightsError(f"{path} is not a valid drafter file")
        return text

    def propose(self, rows: Sequence[Any], **state: object) -> list[list[int]]:
        self.rows = rows
        return [[] for _ in rows]


def proposer(runner: object = None, drafts: object = None):
    """A proposer, with a worker's model runner if there is one."""
    from serving.engines.vllm.draft_worker import DraftProposer

    class Given(DraftProposer):
        def load_drafts(self) -> Any:
            return drafts

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
        model_config=SimpleNamespace(model="model", max_model_len=100, get_vocab_size=lambda: 1000),
        scheduler_config=SimpleNamespace(max_num_seqs=32),
        structured_outputs_config=None,
    )
    made = Given(config)
    if runner is not None:
        made.attach(runner)
    return made


def runner_of(*requests: object) -> SimpleNamespace:
    """A model runner with these requests in its batch."""
    named = {str(place): request for place, request in enumerate(requests)}
    batch = SimpleNamespace(req_ids=list(named))
    return SimpleNamespace(requests=named, input_batch=batch, max_model_len=100, num_spec_tokens=8)


def request_of(**params: object) -> SimpleNamespace:
    """A request of vLLM with three output tokens."""
    defaults = {"max_tokens": None, "seed": None, "temperature": 0.0, "structured_outputs": None}
    given = SimpleNamespace(all_stop_token_ids={2}, eos_token_id=0, **{**defaults, **params})
    return SimpleNamespace(prompt_token_ids=[1], output_token_ids=[5, 6, 7], sampling_params=given, lora_request=None)


def test_this_is_the_version_of_vllm_that_the_plug_in_was_written_for() -> None:
    import vllm

    assert version_fault(vllm.__version__) is None, (
        f"draft_worker.py uses the inner parts of vLLM {WRITTEN_FOR}, and this is {vllm.__version__}. Read its "
        "gpu_model_runner (sample_tokens, propose_draft_token_ids, requests, input_batch), cpu_worker, "
        "backend_guidance and rejection_sampler (apply_sampling_constraints, expand_batch_to_tokens) again, run "
        "tests/serving/engines/vllm, then change WRITTEN_FOR"
    )


def test_a_sampled_batch_whose_drafts_were_all_cut_has_no_logits_to_constrain(monkeypatch) -> None:
    import torch
    from vllm.v1.sample import rejection_sampler

    from serving.engines.vllm.draft_worker import apply_sampling_constraints, expand_batch_to_tokens

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand_batch_to_tokens)  # as the worker does
    params = SimpleNamespace(all_greedy=False, temperature=torch.ones(1), top_k=torch.tensor([3]), top_p=None)
    none = torch.zeros(0, 10)
    assert apply_sampling_constraints(none, torch.zeros(1, dtype=torch.int32), params) is none
    (limited,) = apply_sampling_constraints(torch.arange(10.0)[None], torch.ones(1, dtype=torch.int32), params)
    assert limited.isinf().sum() == 7


def test_without_our_worker_there_are_no_drafts_and_the_log_says_how_to_get_them(caplog) -> None:
    logging.getLogger("vllm").propagate = True
    made = proposer()
    for _ in range(2):
        assert made.propose([[5], [], [6, 7]], np.array([4, 9, 3]), None) == [[], [], []]
    # With two handlers, the same record is captured twice.
    (said,) = [text for text in (record.getMessage() for record in {*caplog.records}) if "without drafts" in text]
    assert "worker_cls is not serving.engines.vllm.draft_worker.DraftWorker" in said


def test_an_error_in_the_drafter_ends_the_drafts_and_nothing_else(caplog) -> None:
    logging.getLogger("vllm").propagate = True
    request, drafts = request_of(), NoDrafts()
    runner = runner_of(request)
    made = proposer(runner, drafts)
    runner.requests.clear()
    assert made.propose([[5]], np.array([4]), None) == [[]]
    assert "vLLM continues without drafts: KeyError" in caplog.text
    runner.requests["0"] = request
    assert made.propose([[5]], np.array([4]), None) == [[]]
    assert not drafts.rows, "it is not asked again"


def test_a_request_gets_the_draft_model_of_its_adapter_while_vllm_has_the_adapter(tmp_path, caplog) -> None:
    """A file that cannot be used is ignored, and the log names it."""
    logging.getLogger("vllm").propagate = True
    loras = []
    for number, (name, content) in enumerate({"good": "guesses", "bad": "", "none": None}.items(), start=1):
        folder = tmp_path / name
        folder.mkdir()
        if content is not None:
            (folder / DRAFT_MODEL).write_text(content)
        loras.append(SimpleNamespace(lora_int_id=number, lora_name=name, lora_path=str(folder)))
    requests = [request_of(), *(request_of() for _ in loras)]
    for request, lora in zip(requests[1:], loras, strict=True):
        request.lora_request = lora
    drafts = NoDrafts()
    made = proposer(runner_of(*requests), drafts)

    def given() -> list[tuple[str | None, Any]]:
        made.propose([[7]] * 4, np.full(4, 40), None)
        return [(row.adapter, row.draft_model) for row in drafts.rows]

    without = [(None, None), ("good", None), ("bad", None), ("none", None)]
    assert given() == without
    for lora in loras:
        made.add_adapter(lora)
    assert given() == [(None, None), ("good", "guesses"), *without[2:]]
    assert f"{tmp_path / 'bad' / DRAFT_MODEL} is ignored" in caplog.text
    made.remove_adapter(1)
    assert given() == without


@pytest.mark.parametrize(
    ("max_tokens", "num_tokens", "limit"),
    [(50, 40, 8), (10, 40, 6), (4, 40, 0), (None, 95, 4)],  # the setting, max_tokens, and the context's end
)
def test_drafts_end_where_the_answer_must(max_tokens: int | None, num_tokens: int, limit: int) -> None:
    row = row_of(num_tokens, max_tokens=max_tokens)
    assert (row.max_drafts, row.end_token_ids) == (limit, {0, 2})


def test_a_seeded_sample_gets_no_drafts_because_its_random_numbers_would_depend_on_them() -> None:
    assert row_of(40, seed=0, temperature=0.5).max_drafts == 0
    assert row_of(40, seed=0, temperature=0.0).max_drafts == 8
    assert row_of(40, seed=None, temperature=0.5).max_drafts == 8


def test_with_little_memory_many_requests_get_fewer_drafts_each() -> None:

    def limit(count: int, free_bytes: int | None) -> int:
        """Of each of so many requests."""
        drafts = NoDrafts()
        made = proposer(runner_of(*[request_of()] * count), drafts)
        made.begin_serving(free_bytes)
        made.propose([[7]] * count, np.full(count, 10), None)
        (found,) = {row.max_drafts for row in drafts.rows}
        return found

    assert limit(1000, None) == 8, "where it is not known how much memory there is"
    # Half of it holds the logits of 17 drafts.
    assert [limit(count, 1_000_000) for count in (1, 2, 3, 17, 18)] == [8, 8, 5, 1, 0]


def test_a_request_near_the_limit_of_the_context_does_not_keep_vllm_from_asking_for_drafts() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = SimpleNamespace(
        speculative_config=SimpleNamespace(use_dflash=lambda: False),
        num_spec_tokens=8,
        max_model_len=100,
        effective_drafter_max_model_len=100,
    )
    longest = SimpleNamespace(max_seq_len=100)
    assert not GPUModelRunner._input_fits_in_drafter(runner, longest), "vLLM alone"
    proposer(runner).begin_serving(free_bytes=None)
    assert GPUModelRunner._input_fits_in_drafter(runner, longest)


def test_cuda_graphs_are_recorded_for_few_rows_too(tmp_path) -> None:
    """vLLM's configuration as it would be on a GPU, computed without one."""
    from vllm.config import CUDAGraphMode
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.attention.backend import AttentionCGSupport

    tiny_checkpoints.save(tiny_checkpoints.tiny_qwen2(hidden_size=128, num_attention_heads=2), tmp_path)

    def sizes(speculative_config: dict[str, Any]) -> list[int]:
        made = AsyncEngineArgs(
            str(tmp_path), skip_tokenizer_init=True, max_num_seqs=32, speculative_config=speculative_config
        ).create_engine_config()
        graphs = made.compilation_config  # the CPU build has switched them off
        graphs.cudagraph_mode, graphs.cudagraph_capture_sizes = CUDAGraphMode.FULL_AND_PIECEWISE, None
        graphs.max_cudagraph_capture_size = None
        made._maybe_override_dynamic_sd_cudagraph_mode()
        made._set_cudagraph_sizes()
        graphs.resolve_cudagraph_mode_and_sizes(AttentionCGSupport.ALWAYS, "any", made.uniform_decode_query_len)
        return graphs.cudagraph_capture_sizes

    config = draft_config(48)
    assert sizes(config)[:5] == [1, 2, 4, 8, 16]
    del config["num_speculative_tokens_per_batch_size"]
    assert sizes(config) == list(range(49, 512, 49)), "vLLM with a fixed number"


def row_of(num_tokens: int, **params: object):
    """What the drafter gets of a request."""
    drafts = NoDrafts()
    proposer(runner_of(request_of(**params)), drafts).propose([[7]], np.array([num_tokens]), None)
    return drafts.rows[0]


def test_a_parameter_is_repeated_for_each_draft_and_keeps_its_type() -> None:
    import torch

    from serving.engines.vllm.draft_worker import expand_batch_to_tokens

    temperatures, cumulative = torch.tensor([0.7, 0.0, 1.5, 0.2]), torch.tensor([2, 5, 5, 6], dtype=torch.int32)
    found = expand_batch_to_tokens(temperatures, cumulative, 6, replace_from=0, replace_to=1)
    torch.testing.assert_close(found, torch.tensor([0.7, 0.7, 1.0, 1.0, 1.0, 0.2]))
    top_k = torch.tensor([3, 9], dtype=torch.int32)
    found = expand_batch_to_tokens(top_k, torch.tensor([1, 3]), 3)
    assert (found.dtype, found.tolist()) == (torch.int32, [3, 9, 9])


class Sampling:
    """vLLM's verification of drafts on fixed logits of the same distribution in every row."""

    VOCAB = 12

    def __init__(self, temperatures: list[float], drafts: list[list[int]], **limits: float) -> None:
        import torch
        from vllm.v1.sample.metadata import SamplingMetadata

        torch.manual_seed(3)
        self.logits = torch.randn(self.VOCAB) * 2
        self._drafts = drafts
        size = len(drafts)
        temperature = torch.tensor(temperatures)
        full = {name: torch.full((size,), value) for name, value in limits.items()}
        self._metadata = SamplingMetadata(
            temperature=temperature,
            all_greedy=not any(temperatures),
            all_random=all(temperatures),
            top_p=full.get("top_p"),
            top_k=full.get("top_k"),
            generators={},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.zeros(size),
            presence_penalties=torch.zeros(size),
            repetition_penalties=torch.ones(size),
            output_token_ids=[[] for _ in drafts],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=SimpleNamespace(non_argmax_invariant=[], argmax_invariant=[]),
        )

    def run(self) -> list[list[int]]:
        """The tokens of each request; the token after the last draft is the likeliest here."""
        import torch
        from vllm.v1.sample import rejection_sampler

        counts = [len(tokens) for tokens in self._drafts]
        total = sum(counts)
        cumulative = torch.tensor(counts).cumsum(0).to(torch.int32)
        logits = rejection_sampler.apply_sampling_constraints(
            self.logits.repeat(total, 1).clone(), cumulative, self._metadata
        )
        found = rejection_sampler.rejection_sample(
            torch.tensor([token for tokens in self._drafts for token in tokens], dtype=torch.int32),
            counts,
            max(counts),
            cumulative,
            None,
            logits,
            torch.full((len(counts), 1), int(self.logits.argmax()), dtype=torch.int32),
            self._metadata,
        )
        return [[token for token in row if token >= 0] for row in found.tolist()]


@pytest.fixture
def mended(monkeypatch):
    """vLLM as our worker mends it on a CPU."""
    from vllm.platforms import current_platform

    from serving.engines.vllm.draft_worker import expand_batch_to_tokens, rejection_sampler

    if not current_platform.is_cpu():
        pytest.skip("the fault is of vLLM's CPU build")
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand_batch_to_tokens)


def test_greedy_requests_beside_sampled_ones_get_their_likeliest_tokens(mended) -> None:
    likeliest = int(Sampling([0.0], [[0]]).logits.argmax())
    for _ in range(20):
        found = Sampling([0.0, 0.8, 0.0], [[likeliest, likeliest], [1, 2, 3], [(likeliest + 1) % 12]], top_p=0.9).run()
        assert found[0] == [likeliest] * 3, "both drafts are accepted, and one token more"
        assert found[2] == [likeliest], "the wrong draft is replaced"


@pytest.mark.parametrize("limits", [{}, {"top_k": 4}, {"top_p": 0.8}])
def test_sampling_with_drafts_keeps_the_distribution(limits: dict[str, float], mended) -> None:
    """The first token of each request, whatever is drafted: chi-squared against the model's distribution."""
    import torch

    count, temperature = 4000, 0.9
    sampling = Sampling([temperature] * count, [[i % 12] for i in range(count)], **limits)
    found = torch.tensor([tokens[0] for tokens in sampling.run()]).bincount(minlength=Sampling.VOCAB)
    expected = probabilities(sampling.logits / temperature, **limits) * count
    assert found[expected == 0].sum() == 0
    used = expected > 0
    chi_squared = float(((found[used] - expected[used]) ** 2 / expected[used]).sum())
    assert chi_squared < 45, (found, expected)  # 11 degrees of freedom: exceeded once in 200,000 runs


def probabilities(logits, top_k: int | None = None, top_p: float | None = None):
    chances, order = logits.softmax(0).sort(descending=True)
    if top_k is not None:
        chances[top_k:] = 0
    if top_p is not None:
        chances[chances.cumsum(0) - chances >= top_p] = 0
    return (chances / chances.sum())[order.argsort()]
