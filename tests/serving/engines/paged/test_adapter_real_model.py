"""A real adapter on its real base: answers in float32 are those of the merged model."""

from __future__ import annotations

import pytest
import torch

from examples.adapters.datagen.all_tasks import EXAMPLE_ADAPTERS, FOLDER
from serving.adapters.golden import read_golden
from serving.kernels.base import Activations, Kernels
from serving.kernels.select import Device, create_kernels
from serving.models.llama import LlamaForCausalLM
from serving.models.loader import load_with_kernels
from serving.models.lora_loader import load_lora
from serving.text import Tokenizer
from tests.serving.models.merged_models import Session, greedy, merged_model
from tests.small_model import ADAPTER, BASE, BUILD

PROMPT = "### Columns:\n['duration_ms', 'http.route', 'error']\n### Question:\nerrors by route\n### Query:\n"

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not (BASE / "model.safetensors").is_file(), reason=f"{BUILD} --adapter none --unquantized {BASE} makes it"
    ),
]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return create_kernels(Device.CPU, 1, Activations.FLOAT32)


@pytest.fixture(scope="module")
def model(kernels: Kernels) -> LlamaForCausalLM:
    return load_with_kernels(BASE, kernels)


@pytest.mark.slow
def test_the_default_model_s_adapter_answers_as_its_merged_model(model: LlamaForCausalLM, kernels: Kernels) -> None:
    """One pass over the merged model's whole answer gives each of its tokens, with nearly the same logits."""
    lora = load_lora(ADAPTER, model.weights.decoder, max_rank=24, max_bytes=20_000_000).lora
    merged = merged_model(model, kernels, lora)
    prompt = Tokenizer.from_dir(BASE).encode(PROMPT)
    answer = greedy(merged, prompt, 24)
    whole = [*prompt, *answer[:-1]]
    expected, adapted, plain = (
        Session(one, adapter).logits(whole)[len(prompt) - 1 :]
        for one, adapter in ((merged, None), (model, lora), (model, None))
    )
    torch.testing.assert_close(adapted, expected, rtol=1e-3, atol=5e-3)
    assert adapted.argmax(1).tolist() == answer
    assert plain.argmax(1).tolist() != answer


@pytest.mark.parametrize("name", EXAMPLE_ADAPTERS)
def test_each_example_adapter_answers_as_its_merged_model(model: LlamaForCausalLM, kernels: Kernels, name: str) -> None:
    """Both give every token of the golden answers, which another run of the merged model gave."""
    lora = load_lora(FOLDER / name, model.weights.decoder, max_rank=8, max_bytes=2_000_000).lora
    merged, golden = merged_model(model, kernels, lora), read_golden(FOLDER / name)
    ends = Tokenizer.from_dir(BASE).eos_token_ids[:1]
    for one in golden:
        whole, answer = [*one.prompt, *one.answer], [*one.answer, *(ends if one.ends else ())]
        for asked, adapter in ((merged, None), (model, lora)):
            logits = Session(asked, adapter).logits(whole)[len(one.prompt) - 1 :]
            assert logits.argmax(1).tolist()[: len(answer)] == answer
        assert Session(model).logits(whole)[len(one.prompt) - 1 :].argmax(1).tolist()[: len(answer)] != answer
    assert golden
