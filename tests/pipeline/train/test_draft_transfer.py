"""A draft model of one base is carried over to another base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipeline.train.draft_network import DraftNetwork
from pipeline.train.draft_transfer import shared_tokens, transfer
from pipeline.train.errors import TrainingError

SIZE, OLD_WIDTH, NEW_WIDTH, OLD_TOKENS, NEW_TOKENS = 32, 40, 48, 90, 120


def vocabulary(path: Path, vocab: object) -> Path:
    path.write_text(json.dumps({"model": {"vocab": vocab}}))
    return path


def draft_file(folder: Path, embedding: torch.Tensor) -> tuple[Path, DraftNetwork]:
    """A random draft model whose layers do something."""
    torch.manual_seed(0)
    model = DraftNetwork(embedding, size=SIZE, num_layers=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    path = folder / "draft.model"
    model.save(path, markers=[[1]], answer_tokens=[2], trigrams=[])
    model.restore(path)  # as rounded to float16
    return path, model


def test_shared_tokens_of_another_embedding_give_the_same_logits(tmp_path: Path) -> None:
    """The new embedding is a turned copy of the old one with other ids, so that an exact fit exists."""
    ids = torch.randperm(NEW_TOKENS, generator=torch.Generator().manual_seed(1))[:OLD_TOKENS]
    names = [f"t{i}" for i in range(OLD_TOKENS)]
    old = vocabulary(tmp_path / "old.json", {name: i for i, name in enumerate(names)})
    new = vocabulary(tmp_path / "new.json", {name: int(i) for name, i in zip(names, ids, strict=True)} | {"other": 7})
    generator = torch.Generator().manual_seed(2)
    embedding = torch.randn(OLD_TOKENS, OLD_WIDTH, generator=generator)
    turn = torch.linalg.qr(torch.randn(NEW_WIDTH, OLD_WIDTH, generator=generator))[0].T
    other = torch.randn(NEW_TOKENS, NEW_WIDTH, generator=generator)
    other[ids] = 1000 * embedding @ turn  # the scale of an embedding must not matter
    path, before = draft_file(tmp_path, embedding)
    after = DraftNetwork(other, size=SIZE, num_layers=2)
    transfer(after, path, embedding=embedding, shared=shared_tokens(new, old))
    prompt, candidates = torch.arange(12)[None], torch.arange(20, 60)
    seen = torch.arange(1, 13)[None]
    with torch.no_grad():
        expected = before.logits(prompt, candidates, seen)
        result = after.logits(ids[prompt], ids[candidates], seen)
    assert expected.std() > 0.1
    # The ridge pulls the fit a little towards zero.
    assert torch.corrcoef(torch.stack((expected.flatten(), result.flatten())))[0, 1] > 0.99


def test_only_tokens_with_the_same_text_are_shared(tmp_path: Path) -> None:
    new = vocabulary(tmp_path / "new.json", {"a": 5, "b": 6, "c": 7})
    old = vocabulary(tmp_path / "old.json", {"c": 0, "x": 1, "a": 2})
    assert shared_tokens(new, old).tolist() == [[5, 2], [7, 0]]


@pytest.mark.parametrize(
    ("vocab", "message"), [({"x": 0}, "share no token"), ([["a", -1.0]], "not a table"), (None, "not a table")]
)
def test_vocabularies_that_cannot_be_compared_are_refused(tmp_path: Path, vocab: object, message: str) -> None:
    new = vocabulary(tmp_path / "new.json", {"a": 0})
    with pytest.raises(TrainingError, match=message):
        shared_tokens(new, vocabulary(tmp_path / "old.json", vocab))


def test_a_file_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(TrainingError, match=r"broken.json: not a tokenizer"):
        shared_tokens(tmp_path / "broken.json", tmp_path / "broken.json")
