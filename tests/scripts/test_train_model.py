"""The lean model computes what transformers and PEFT compute, packed or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

from scripts.training.adapter_file import load_adapter, save_adapter
from scripts.training.errors import AdapterError
from scripts.training.model import LoraLlama
from scripts.training.packing import TokenizedExample, make_pack
from scripts.training.workers import Workers
from tests.scripts.training_fixtures import some_examples, write_base

RANK, ALPHA = 4, 8.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


def lora_model(base: Path, dtype: torch.dtype = torch.float32) -> LoraLlama:
    """A model whose B is not zero, so that A has gradients too."""
    model = LoraLlama.load(base, RANK, ALPHA, dtype=dtype)
    model.initialize(seed=1)
    model.parameters.add_(torch.empty_like(model.parameters).normal_(0, 0.05, generator=torch.manual_seed(2)))
    model.refresh()
    return model


def peft_model(base: Path, model: LoraLlama, folder: Path) -> PeftModel:
    save_adapter(model, folder, "base")
    return PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), folder, is_trainable=True)


def peft_loss(model: PeftModel, example: TokenizedExample) -> torch.Tensor:
    ids = torch.tensor([[*example.prompt, *example.answer]])
    logits = model(input_ids=ids).logits[0, len(example.prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(example.answer), reduction="sum")


def test_loss_and_gradients_equal_those_of_peft_on_separate_samples(base: Path, tmp_path: Path) -> None:
    model = lora_model(base)
    model.parameters.copy_(model.parameters.half())  # what the adapter file keeps
    model.refresh()
    reference = peft_model(base, model, tmp_path)
    examples = some_examples()
    expected = sum(peft_loss(reference, e) for e in examples)
    expected.backward()

    worker = model.replica()
    loss = worker.loss(make_pack(examples))
    loss.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    wanted = dict(reference.named_parameters())
    compared = 0
    for name, grad in worker.named_grads():
        there = wanted["base_model.model." + name.replace(".weight", ".default.weight")].grad
        torch.testing.assert_close(grad, there, rtol=1e-3, atol=1e-5)
        compared += 1
    assert compared == 2 * 7 * 2


def test_a_pack_of_many_is_the_sum_of_packs_of_one(base: Path) -> None:
    model, examples = lora_model(base), some_examples()
    together, apart = model.replica(), model.replica()
    loss = together.loss(make_pack(examples))
    loss.backward()
    losses = [apart.loss(make_pack([e])) for e in examples]
    sum(losses).backward()
    assert loss.item() == pytest.approx(sum(x.item() for x in losses), rel=1e-5)
    torch.testing.assert_close(together.grads, apart.grads, rtol=1e-3, atol=1e-5)


def test_branches_do_not_see_each_other(base: Path) -> None:
    """The loss of the first answers stays when the last branch changes."""
    model, examples = lora_model(base), some_examples()
    changed = [*examples[:2], TokenizedExample((*examples[0].prompt[:17], 99, 98), (97, 257))]
    scored = len(examples[0].answer) + len(examples[1].answer)
    with torch.no_grad():
        before, after = (model.hidden(make_pack(e))[:scored] for e in (examples, changed))
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_bf16_arithmetic_gives_nearly_the_same_gradients(base: Path) -> None:
    """Small updates must not vanish: fp32 parameters, bf16 arithmetic, about the same gradients."""
    exact, rough = lora_model(base).replica(), lora_model(base, torch.bfloat16).replica()
    pack = make_pack(some_examples())
    for model in (exact, rough):
        model.loss(pack).backward()
    assert rough.parameters.dtype == torch.float32
    error = (exact.grads - rough.grads).norm() / exact.grads.norm()
    assert 0 < error < 0.05


def test_two_workers_give_the_gradients_of_one(base: Path) -> None:
    model, examples = lora_model(base), some_examples()
    packs = [make_pack(examples), make_pack(examples[:1]), make_pack(examples[1:])]
    results = []
    for count in (1, 2):
        with Workers(model, count) as workers:
            loss, grads = workers.gradients(packs)
            assert workers.loss(packs) == pytest.approx(loss, rel=1e-5)
            results.append((loss, grads.clone()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-6)


def test_a_fresh_adapter_changes_nothing(base: Path) -> None:
    model = LoraLlama.load(base, RANK, ALPHA)
    model.initialize(seed=3)
    plain = LlamaForCausalLM.from_pretrained(base)
    example = some_examples()[0]
    ids = torch.tensor([[*example.prompt, *example.answer]])
    with torch.no_grad():
        logits = plain(input_ids=ids).logits[0, len(example.prompt) - 1 : -1]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(example.answer), reduction="sum")
        assert model.loss(make_pack([example])).item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_adapter_comes_back_from_disk(base: Path, tmp_path: Path) -> None:
    model = lora_model(base)
    save_adapter(model, tmp_path, "base")
    again = LoraLlama.load(base, RANK, ALPHA)
    load_adapter(again, tmp_path)
    torch.testing.assert_close(again.parameters, model.parameters.half().float())
    with pytest.raises(AdapterError, match=r"--rank 4 --alpha 8"):
        load_adapter(LoraLlama.load(base, 8, ALPHA), tmp_path)


def test_the_file_has_the_names_that_peft_writes(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save_adapter(lora_model(base), tmp_path / "ours", "base")
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM", bias="none"
    )
    get_peft_model(LlamaForCausalLM.from_pretrained(base), config).save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / n / "adapter_model.safetensors") for n in ("ours", "theirs"))
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
