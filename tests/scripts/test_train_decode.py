"""The quick decoder answers as transformers does."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from scripts.training.decode import greedy
from scripts.training.model import LoraLlama
from tests.scripts.training_fixtures import some_examples, write_base


def test_greedy_answers_equal_those_of_transformers(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    model = LoraLlama.load(base, 4, 8.0)
    model.initialize(0)
    prompts = [e.prompt for e in some_examples()] + [tuple(range(100, 109))]
    reference = LlamaForCausalLM.from_pretrained(base)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(12):
            ids = torch.cat([ids, reference(ids).logits[:, -1:].argmax(-1)], dim=1)
        expected.append(ids[0, len(prompt) :].tolist())
    assert greedy(model, prompts, end_token_id=-1, max_new_tokens=12) == expected

    end = expected[0][5]  # now taken for the end token: answers stop right before it
    cut = [tokens[: tokens.index(end)] if end in tokens else tokens for tokens in expected]
    assert greedy(model, prompts, end_token_id=end, max_new_tokens=12) == cut
    assert len(cut[0]) < 12
