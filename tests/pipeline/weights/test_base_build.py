"""A base model by name becomes a checkpoint that transformers can read, with its chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from pipeline.paths import ROOT
from pipeline.weights.build_from_sources import build_base
from pipeline.weights.errors import CheckpointError
from serving.weights import lock_files

CACHE = ROOT / "weights" / ".cache"


@pytest.mark.weights
def test_the_checkpoint_is_complete_and_transformers_reads_its_chat_template(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert {file.path for file in lock_files(smollm2)} == {
        *("chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
        "tokenizer_config.json",
    }
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_unknown_base_and_a_folder_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'gpt-5' is unknown; known are smollm2-135m-instruct, "):
        build_base("gpt-5", tmp_path / "new", CACHE)
    with pytest.raises(CheckpointError, match="exists already"):
        build_base("smollm2-135m-instruct", tmp_path, CACHE)
