"""Our Llama, Mistral, Qwen2 and Qwen3 give the logits of transformers' in float32, with any chunks."""

from __future__ import annotations

import pytest
import torch

from serving.kernels.reference import ReferenceKernels
from serving.kernels.select import Device, create_kernels
from serving.models.loader import load_with_kernels
from tests.serving.models import tiny_checkpoints
from tests.serving.models.batches import run_whole

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "llama": lambda: tiny_checkpoints.tiny_llama(tie_word_embeddings=True),
    "llama-linear": lambda: tiny_checkpoints.tiny_llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-llama3": lambda: tiny_checkpoints.tiny_llama(rope_parameters=LLAMA3),
    "llama-yarn": lambda: tiny_checkpoints.tiny_llama(rope_parameters=YARN),
    "llama-yarn-deepseek": lambda: tiny_checkpoints.tiny_llama(
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 4, "truncate": False}
    ),
    "llama-yarn-attention-factor": lambda: tiny_checkpoints.tiny_llama(rope_parameters={**YARN, "attention_factor": 2}),
    "llama-bias": lambda: tiny_checkpoints.tiny_llama(attention_bias=True, mlp_bias=True),
    "llama-attention-bias": lambda: tiny_checkpoints.tiny_llama(attention_bias=True),
    "llama-mlp-bias": lambda: tiny_checkpoints.tiny_llama(mlp_bias=True),
    "llama-head-dim": lambda: tiny_checkpoints.tiny_llama(head_dim=24, num_key_value_heads=6),
    "mistral": tiny_checkpoints.tiny_mistral,
    "qwen2": tiny_checkpoints.tiny_qwen2,
    "qwen2-tied": lambda: tiny_checkpoints.tiny_qwen2(tie_word_embeddings=True),
    "qwen3": tiny_checkpoints.tiny_qwen3,
    "qwen3-bias": lambda: tiny_checkpoints.tiny_qwen3(attention_bias=True),
    "qwen3-head-dim": lambda: tiny_checkpoints.tiny_qwen3(head_dim=16, num_key_value_heads=6),
    "mistral-no-window": lambda: tiny_checkpoints.tiny_mistral(sliding_window=None),
}
KERNELS = {"reference": ReferenceKernels, "cpu": lambda: create_kernels(Device.CPU, 2)}


@pytest.fixture(params=KERNELS)
def kernels(request):
    return KERNELS[request.param]()


@pytest.mark.parametrize("quantized", ["no", "awq", "symmetric", "asymmetric"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name, quantized, kernels, tmp_path):
    reference = MODELS[name]()
    tiny_checkpoints.save(reference, tmp_path)
    if quantized == "awq":
        tiny_checkpoints.quantize(tmp_path, reference)
    elif quantized != "no":
        tiny_checkpoints.compress(tmp_path, reference, symmetric=quantized == "symmetric")
    tokens = torch.randint(0, 199, (53,)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    model = load_with_kernels(tmp_path, kernels)
    for chunks in ([53], [20, 1, 32]):
        torch.testing.assert_close(run_whole(model, tokens, chunks), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_are_computed_in_float32(dtype, kernels, tmp_path):
    reference = tiny_checkpoints.tiny_mistral()
    tiny_checkpoints.save(reference, tmp_path, dtype)
    tokens = torch.randint(0, 199, (33,)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    model = load_with_kernels(tmp_path, kernels)
    torch.testing.assert_close(run_whole(model, tokens, [33]), expected, rtol=1e-4, atol=1e-4)


def test_greedy_tokens_equal_those_of_transformers(kernels, tmp_path):
    reference = tiny_checkpoints.tiny_llama()
    tiny_checkpoints.save(reference, tmp_path)
    prompt = torch.randint(1, 199, (1, 9))
    expected = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None
    )[0].tolist()
    model = load_with_kernels(tmp_path, kernels)
    logits = run_whole(model, expected[:-1], [9] + [1] * 63)
    assert logits[8:].argmax(-1).tolist() == expected[9:]
