"""Replayed passes have the bits of those that are run, and padding is stored nowhere."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from lab.gpu.engine_checkpoint import TINY, write_weights
from serving.devices import has_cuda_device
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.step import ScheduledRequest, SchedulerOutput
from serving.engines.paged.step_batch import PaddedInputs, build_batch
from serving.engines.paged.step_graphs import StepGraphs
from serving.kernels.base import PADDING_SLOT
from serving.kernels.rope import RopeConfig, RotaryTable
from tests.serving.engines.paged.paged_fakes import make_prompt, make_request
from tests.serving.kernels.lora_inputs import random_adapter
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from serving.kernels.triton.kernels import TritonKernels
from serving.models.loader import load_with_kernels
from tests.serving.engines.paged.operation_recorder import OperationRecorder, ReadWhileRecordingError

# Rows of padding attend to nothing, so they hold what was in memory, which may not fit float16.
IGNORED = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
pytestmark = [*ON_THE_GPU, IGNORED]
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 16, 8, 64


def item(prompt, blocks, start, num_tokens, drafts=()):
    request = make_request("a", prompt)
    request.block_ids = list(blocks)
    return ScheduledRequest(request, start, num_tokens, list(drafts))


def batch_of(*items):
    return build_batch(items, BLOCK_SIZE)


def test_a_padded_batch_by_hand():
    inputs = PaddedInputs(rows=8, seqs=3, blocks=5, device="cpu")
    batch = batch_of(item(make_prompt(20), [4, 1], 17, 3), item(make_prompt(5), [6], 4, 1, [9]))
    inputs.fill(batch_of(*[item(make_prompt(40, i), [1, 2, 3], 38, 2) for i in range(3)]))  # leaves nothing behind
    inputs.fill(batch)
    assert inputs.input_ids.tolist() == [*batch.input_ids.tolist(), 0, 0, 0]
    assert inputs.positions.tolist() == [17, 18, 19, 4, 5, 0, 0, 0]
    assert inputs.metadata.slot_mapping.tolist() == [17, 18, 19, 100, 101, *[PADDING_SLOT] * 3]
    assert inputs.metadata.query_start.tolist() == [0, 3, 5, 5]
    assert inputs.metadata.context_lens.tolist() == [20, 6, 0]
    assert inputs.metadata.block_tables.tolist() == [[4, 1, 0, 0, 0], [6, 0, 0, 0, 0], [0] * 5]
    addresses = [tensor.data_ptr() % 16 for tensor in (inputs.input_ids, *vars(inputs.metadata).values())]
    assert addresses == [0] * 5, "kernels are compiled for aligned addresses"


@pytest.mark.parametrize(
    ("rows", "seqs", "blocks", "recording"),
    [(1, 1, 1, 1), (2, 2, 1, 4), (3, 1, 4, 4), (4, 3, 1, None), (5, 2, 4, 8), (8, 1, 5, None), (9, 1, 1, None)],
)
def test_a_step_uses_the_smallest_recording_with_room(rows, seqs, blocks, recording):
    """Up to 2 requests of up to 4 blocks."""
    ran = []

    class Instant:
        def record(self, run):
            hidden = run()
            return hidden, lambda: ran.append(len(hidden))

        def seconds(self, replay):
            replay()
            return 0.001 * ran.pop()

    def forward(inputs):
        return torch.arange(inputs.rows)[:, None]

    graphs = StepGraphs(forward, Instant(), max_seqs=2, max_blocks=4, device="cpu", rows=(1, 4, 8))
    told = []
    measured = graphs.record(lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert measured == [(1, 0.001), (4, 0.004), (8, 0.008)], "so that a drafter knows what rows cost"
    counts = [1] * (seqs - 1) + [rows - seqs + 1]
    items = [item(make_prompt(blocks * BLOCK_SIZE), range(blocks), 0, count) for count in counts]
    hidden = graphs.run(batch_of(*items))
    assert ran == ([] if recording is None else [recording])
    assert (hidden is None) == (recording is None)
    assert hidden is None or len(hidden) == rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama of one layer with 4-bit weights, because the interpreter takes milliseconds a tile."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    write_weights(folder, {**TINY, **sizes, "num_attention_heads": 2, "num_key_value_heads": 1})
    return folder


class WatchedModel:
    """A model that notes what a runner asks of it: KV caches, hidden states of steps, and rows of whole logits."""

    def __init__(self, model):
        self._model = model
        self.kv_caches, self.hidden, self.logit_rows = [], [], []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def allocate_kv_caches(self, num_blocks, block_size):
        """Caches that are NaN where nothing was written."""
        self.kv_caches = self._model.allocate_kv_caches(num_blocks, block_size)
        for cache in self.kv_caches:
            cache.fill_(float("nan"))
        return self.kv_caches

    def compute_logits(self, hidden):
        self.logit_rows.append(len(hidden))
        return self._model.compute_logits(hidden)

    def compute_allowed_logits(self, hidden, rows, bitmasks, max_columns):
        self.hidden.append(hidden.clone())  # of the whole step, in which `rows` are chosen
        return self._model.compute_allowed_logits(hidden, rows, bitmasks, max_columns)


def make_runner(folder, recorder=None, half=True):
    """A runner on Triton's kernels, and its model."""
    model = WatchedModel(load_with_kernels(folder, TritonKernels(DEVICE, half=half), device=DEVICE))
    runner = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, device=DEVICE)
    if recorder is not None:
        model.rotary.complete(MAX_LEN)
        runner.record_graphs(recorder, max_seqs=4, max_model_len=MAX_LEN, progress=lambda done, total: None)
    return runner, model


STEPS = (
    [item(make_prompt(33), [5, 2, 7], 0, 33)],  # a prompt, in a recording of 64 rows
    [item(make_prompt(9, 1), [3], 0, 9), item(make_prompt(34), [5, 2, 7], 33, 1)],
    [item(make_prompt(35), [5, 2, 7], 34, 1, [3, 1, 4]), item(make_prompt(10, 1), [3], 9, 1)],  # drafts
    [item(make_prompt(11, 1), [3], 10, 1)],  # alone, in the smallest
)


def run_steps(runner, model):
    """The hidden states of each step, the sampled tokens, and the caches at the end."""
    tokens = [runner.execute(SchedulerOutput(list(step))).sampled_token_ids for step in STEPS]
    assert len(model.hidden) == len(STEPS)
    return model.hidden, tokens, model.kv_caches


def assert_same_bits(found, expected):
    (hidden, tokens, caches), (hidden_2, tokens_2, caches_2) = found, expected
    assert tokens == tokens_2
    for mine, theirs in zip(hidden, hidden_2, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(caches, caches_2, strict=True):
        assert torch.equal(mine.nan_to_num(nan=7.0), theirs.nan_to_num(nan=7.0)), "padding was stored"
        assert mine.isnan().any(), "or the check finds nothing"


def test_a_step_with_an_adapter_is_launched_and_others_are_replayed(folder):
    """Also in one batch: the row without an adapter has the bits of a replayed pass."""
    with torch.device("cpu"):
        _, model = make_runner(folder)
        adapter = random_adapter((3,), shapes=model.weights.decoder.projections)

    class Counting:
        replays = 0

        def record(self, run):
            hidden = run()

            def replay():
                self.replays += 1
                hidden.copy_(run())

            return hidden, replay

        def seconds(self, replay):
            return 1.0

    recorder = Counting()
    runner, model = make_runner(folder, recorder)
    for lora in (None, adapter):
        first, second = item(make_prompt(9, 1), [3], 0, 9), item(make_prompt(20), [5, 2], 0, 20)
        second.request.lora = lora
        runner.execute(SchedulerOutput([first, second]))
        assert recorder.replays == 1, "by the first step only"
    without, beside = model.hidden
    assert torch.equal(without[:9], beside[:9])
    assert not torch.equal(without[9:], beside[9:])


def test_kernels_are_compiled_for_adapters_of_each_type(folder):
    from serving.engines.paged.cuda_start import blank_adapters

    runner, model = make_runner(folder)
    adapters = blank_adapters(model.weights.decoder)
    assert [one.layers[0][0].down.dtype for one in adapters] == [torch.float16, torch.bfloat16, torch.float32]
    runner.warm_up((1,), adapters)


def test_kernels_are_compiled_for_the_logits_of_few_and_of_many_rows(folder):
    runner, model = make_runner(folder)
    runner.warm_up((16, 32, 100))
    assert model.logit_rows == [16, 32, 64]


@pytest.mark.skipif(has_cuda_device(), reason="the stand-in records on the CPU")
def test_recorded_operations_have_the_bits_of_passes_that_are_run(folder):
    recorder = OperationRecorder()
    found = run_steps(*make_runner(folder, recorder))
    assert len(recorder.recorded) == 7 and min(recorder.recorded) > 10, "kernels were recorded"
    assert_same_bits(found, run_steps(*make_runner(folder)))


def test_rotary_tables_that_still_grow_cannot_be_recorded():
    """They look at the positions, and so wait for the device."""
    rotary, positions = RotaryTable(RopeConfig(1e4), 8), torch.tensor([3, 5], dtype=torch.int32)
    with torch.inference_mode(), pytest.raises(ReadWhileRecordingError):
        OperationRecorder().record(lambda: rotary(positions)[0])
    rotary.complete(MAX_LEN)
    with torch.inference_mode():
        cosines, replay = OperationRecorder().record(lambda: rotary(positions)[0])
        positions.copy_(torch.tensor([7, 1]))
        replay()
    assert torch.equal(cosines, rotary.tables[0][[7, 1]])


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_cuda_graphs_have_the_bits_of_passes_that_are_run(folder, half):
    from serving.engines.paged.step_graphs import CudaRecorder

    found = run_steps(*make_runner(folder, CudaRecorder(), half))
    assert_same_bits(found, run_steps(*make_runner(folder, half=half)))
