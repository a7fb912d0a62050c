"""The small model on the real kernels compared with transformers in float32 on the dequantized weights."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, LlamaForCausalLM

from serving.kernels.base import Activations, AwqTensors
from serving.kernels.reference import dequantize_awq
from serving.models.config import read_config
from serving.models.loader import load_model
from serving.models.tensor_files import TensorFiles
from tests.serving.models.batches import run_whole
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS

PROMPT = (
    "Honeycomb is an observability platform. Write the Honeycomb query that answers the question, using only "
    "the columns given.\n\n### Columns:\n['duration_ms', 'error', 'http.route', 'name', 'service.name']\n\n"
    '### NLQ:\n"slowest routes of the checkout service"\n\n### Response:\n'
)
NEW_TOKENS = 64
# The largest difference of a logit, whose standard deviation is about 6; without AMX tiles BFLOAT16 becomes INT8
TOLERANCE = {Activations.FLOAT32: 2e-3, Activations.INT16: 5e-2, Activations.INT8: 3.0, Activations.BFLOAT16: 3.0}

pytestmark = [pytest.mark.weights, NEEDS_WEIGHTS]


@pytest.fixture(scope="module")
def reference():
    """transformers' Llama, its linear weights dequantized from the checkpoint."""
    config, checkpoint = read_config(WEIGHTS), TensorFiles(WEIGHTS)
    settings = AutoConfig.from_pretrained(WEIGHTS)
    del settings.quantization_config
    model = LlamaForCausalLM(settings).float().eval()
    for name, parameter in model.named_parameters():
        stem = name.removesuffix("weight")
        shape = tuple(parameter.shape)
        if f"{stem}qweight" not in checkpoint:
            parameter.data = checkpoint.tensor(name, shape, torch.float16).float()
            continue
        outputs, inputs = shape
        groups = inputs // config.quantization.group_size
        tensors = AwqTensors(
            checkpoint.tensor(f"{stem}qweight", (inputs, outputs // 8), torch.int32),
            checkpoint.tensor(f"{stem}qzeros", (groups, outputs // 8), torch.int32),
            checkpoint.tensor(f"{stem}scales", (groups, outputs), torch.float16),
            config.quantization.group_size,
        )
        parameter.data = dequantize_awq(tensors).T.contiguous()
    return model


@pytest.fixture(scope="module")
def answer(reference):
    """The prompt, the tokens with which transformers continues it, and all their logits."""
    ids = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")).encode(PROMPT, add_special_tokens=False).ids
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    prompt = torch.tensor([ids])
    tokens = reference.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)[0].tolist()
    with torch.no_grad():
        logits = reference(torch.tensor([tokens[:-1]])).logits[0]
    return ids, tokens, logits


@pytest.mark.parametrize("activations", Activations)
def test_logits_and_greedy_tokens_equal_those_of_transformers(answer, activations):
    ids, tokens, expected = answer
    model = load_model(WEIGHTS, activations=activations)
    logits = run_whole(model, tokens[:-1], [len(ids)] + [1] * (NEW_TOKENS - 1))
    assert (logits - expected).abs().max() < TOLERANCE[activations]
    assert logits[len(ids) - 1 :].argmax(-1).tolist() == tokens[len(ids) :]


@pytest.mark.parametrize("activations", Activations)
def test_the_division_into_passes_does_not_change_a_bit(answer, activations):
    """Verifying a draft of any length, in chunks or at once, with any number of threads."""
    tokens = answer[1]
    one_thread = load_model(WEIGHTS, num_threads=1, activations=activations)
    expected = run_whole(one_thread, tokens, [len(tokens)])
    two_threads = load_model(WEIGHTS, num_threads=2, activations=activations)
    for chunks in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [16, 17, 64]):
        rest = len(tokens) - sum(chunks)
        assert torch.equal(run_whole(two_threads, tokens, [*chunks, rest]), expected)
