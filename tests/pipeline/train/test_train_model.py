"""The loss of a pack, merged or rounded, is what PEFT computes on separate examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pipeline.train.errors import TrainingError
from pipeline.train.lora_model import LoraModel
from pipeline.train.packing import TokenizedExample, make_pack
from tests.pipeline.train.training_fixtures import some_examples, write_base

RANK, ALPHA = 4, 8


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return write_base(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=260, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zero at first, which would test nothing
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def trained(base: Path, dtype: torch.dtype = torch.float32) -> LoraModel:
    """A model whose B is not zero, so that A has gradients too. Values are those that fp16 files keep."""
    torch.manual_seed(1)
    model = LoraModel.load(base, RANK, ALPHA, dtype=dtype)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05).copy_(parameter.data.half())
    model.refresh()
    return model


def peft_loss(model: PeftModel, example: TokenizedExample) -> torch.Tensor:
    ids = torch.tensor([[*example.prompt, *example.answer]])
    logits = model(input_ids=ids).logits[0, len(example.prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(example.answer), reduction="sum")


def test_loss_and_gradients_equal_those_of_peft_on_separate_examples(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    model.save(tmp_path, "base")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    reference = PeftModel.from_pretrained(plain, tmp_path, is_trainable=True)
    expected = sum(peft_loss(reference, e) for e in some_examples())
    expected.backward()

    loss = model.loss(make_pack(some_examples()))
    loss.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    wanted = dict(reference.named_parameters())
    compared = 0
    for name, parameter in model.peft.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared == 2 * 7 * 2


def test_bf16_arithmetic_gives_nearly_the_same_gradients(base: Path) -> None:
    """Small updates must not be rounded away: parameters and gradients are fp32 in any arithmetic."""
    pack, grads = make_pack(some_examples()), []
    for model in (trained(base), trained(base, torch.bfloat16)):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        model.loss(pack).backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert 0 < (grads[0] - grads[1]).norm() / grads[0].norm() < 0.05


def test_a_long_pack_is_computed_twice_and_has_the_same_gradients(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack, grads, computed = make_pack(some_examples()), [], []
    for longest in (len(pack.input_ids), len(pack.input_ids) - 1):
        monkeypatch.setattr("pipeline.train.lora_model._LONG_PACK", longest)
        model, calls = trained(base), []
        _, layer = next(iter(model.layers()))
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        model.loss(pack).backward()
        grads.append([parameter.grad for parameter in model.parameters()])
        computed.append(len(calls))
    assert computed == [1, 2], "what a layer computes is not kept for the backward pass"
    torch.testing.assert_close(*grads)


def test_a_fresh_adapter_changes_nothing(base: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    example = some_examples()[0]
    loss = LoraModel.load(base, RANK, ALPHA).loss(make_pack([example]))
    assert loss.item() == pytest.approx(peft_loss(plain, example).item(), rel=1e-5)


def test_an_adapter_is_read_back_from_its_files(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    model.save(tmp_path, "base")
    again = LoraModel.load(base, RANK, ALPHA)
    again.load_adapter(tmp_path)
    pack = make_pack(some_examples())
    assert again.loss(pack).item() == model.loss(pack).item()
    with pytest.raises(TrainingError, match=r"--rank 4 --alpha 8"):
        LoraModel.load(base, 8, ALPHA).load_adapter(tmp_path)


def test_an_adapter_of_another_base_is_refused_by_tensor(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    model.save(tmp_path, "base")
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    from safetensors.torch import save_file

    name = sorted(tensors)[0]
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(TrainingError, match=name.replace(".", r"\.")):
        model.load_adapter(tmp_path)


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "quantized")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
    with pytest.raises(TrainingError, match="train on the unquantized checkpoint"):
        LoraModel.load(base, rank=4, alpha=8)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot load"):
        LoraModel.load(tmp_path, RANK, ALPHA)
