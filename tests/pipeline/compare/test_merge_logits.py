"""scripts/merge_lora tells how far merges are from the live adapter in logits, or why it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config

from pipeline.compare.divergence import divergences
from pipeline.compare.merge_logits import CHEAP, TEXT, compare_logits
from pipeline.compare.plain_weights import PlainWeights
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.live_weights import LiveWeights
from pipeline.weights.merging.merge import Rounding, merge_folder
from tests import tiny_tokenizers
from tests.pipeline.weights.merging.trained_adapters import GPT2, QWEN, TIED_QWEN, round_trip, trained

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [([1, 5, 9, 30, 2, 8], 1), ([7, 7, 3], 2)]


def expected_logprobs(live: torch.nn.Module) -> torch.Tensor:
    """What PEFT's live model computes at the positions that count."""
    with torch.no_grad():
        rows = [live(input_ids=torch.tensor([ids])).logits[0, max(start, 1) - 1 : -1] for ids, start in TEXTS]
    return torch.log_softmax(torch.cat(rows), dim=1)


def test_divergences_are_from_what_peft_computes_with_the_adapter(tmp_path: Path) -> None:
    """With a base in NF4, DoRA, biases and saved modules, which all have a part in the logits."""
    live = trained(tmp_path, TIED_QWEN, use_dora=True, bias="all", modules_to_save=["norm"]).float()
    for name, parameter in live.named_parameters():
        if "base_layer.weight" in name:
            parameter.data = torch.from_numpy(round_trip(parameter.data.numpy()))
    first = expected_logprobs(live)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    folders = {Rounding.NF4: tmp_path / "nf4", Rounding.NONE: tmp_path / "plain"}
    for rounding, folder in folders.items():
        merge_folder(base, adapter, folder, rounding)
    written = PlainWeights(folders[Rounding.NF4])
    unwritten = LiveWeights(base, adapter, written.config, None, plain=True)
    found = divergences(LiveWeights(base, adapter, written.config, double=True), [written, unwritten], TEXTS)
    for one, folder in zip(found, folders.values(), strict=True):
        second = expected_logprobs(model_of(folder))
        kl = (first.exp() * (first - second)).sum(dim=1)
        assert one.positions == len(kl) == 5 + 1
        assert one.kl == pytest.approx(float(kl.mean()), rel=0.01, abs=1e-6)
        assert one.largest_kl == pytest.approx(float(kl.max()), rel=0.01, abs=1e-6)
    assert found[0].kl < 1e-5 < found[1].kl, "the merge into NF4 is what was trained"


def model_of(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_a_small_model_is_compared_on_the_user_s_texts_or_on_ours(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    trained(tmp_path, Qwen2Config.from_dict({**QWEN.to_dict(), "vocab_size": tokenizer.vocab_size}))
    tiny_tokenizers.save(tokenizer, tmp_path / "base")
    (tmp_path / "texts.jsonl").write_text('{"text": "count by name"}\n{"text": "the slowest traces"}\n')
    base, adapter, out = (tmp_path / name for name in ("base", "adapter", "out"))
    command = [sys.executable, "scripts/merge_lora", str(base), str(adapter), str(out), "--nf4"]
    command += ["--json", str(tmp_path / "report.json"), "--texts", str(tmp_path / "texts.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Logits of the nf4 merge against the live adapter" in done.stderr
    found = [
        json.loads((tmp_path / "report.json").read_text())["logits"],
        compare_logits(base, adapter, out, Rounding.NF4, None, None),
    ]
    assert [one["nf4_merge"]["positions"] for one in found] == [
        sum(len(tokenizer.encode(text)) - 1 for text in ("count by name", "the slowest traces")),
        len(tokenizer.encode(TEXT)) - 1,
    ]
    for one in found:
        assert one["nf4_merge"]["kl"] < one["plain_merge"]["kl"] < one["plain_merge"]["largest_kl"]


def test_what_is_skipped_says_why(tmp_path: Path) -> None:
    trained(tmp_path, QWEN)
    base, adapter, out = (tmp_path / name for name in ("base", "adapter", "out"))
    merge_folder(base, adapter, out)

    def reason(wanted: bool | None) -> str:
        return str(compare_logits(base, adapter, out, Rounding.NONE, None, wanted)["skipped"])

    assert reason(None) == "the base has no tokenizer.json"
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), out)
    assert reason(False) == "--no-logits"
    assert "is the tokenizer its?" in reason(None), "64 rows for 500 tokens"
    with pytest.raises(CheckpointError, match="logits cannot be compared"):
        reason(True)
    with (out / "large.safetensors").open("wb") as file:
        file.truncate(CHEAP + 1)  # takes no space
    assert reason(None) == "the weights have 2.0 GB, so it takes long; --logits does it"


def test_an_architecture_that_is_not_computed_is_merged_all_the_same(tmp_path: Path) -> None:
    trained(tmp_path, GPT2, target_modules=["c_attn"], fan_in_fan_out=True)
    base, adapter, out = (tmp_path / name for name in ("base", "adapter", "out"))
    merge_folder(base, adapter, out)
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), out)
    assert "gpt2" in compare_logits(base, adapter, out, Rounding.NONE, None, None)["skipped"]
