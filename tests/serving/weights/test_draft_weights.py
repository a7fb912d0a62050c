"""The file of a draft model: valid files are read, others are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.errors import WeightsError
from serving.weights.draft_weights import DRAFT_MODEL
from tests.draft_models import SIZE, VOCAB, WIDTH, load_weights, write_draft_model


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    trigrams = [(1, 2, 3), (1, 4, 3)]
    _, embedding = write_draft_model(tmp_path, markers=((7, 8), (9,)), answer_tokens=(1, 2, 3), trigrams=trigrams)
    weights = load_weights(tmp_path, embedding)
    assert (weights.markers, weights.answer_tokens) == (((7, 8), (9,)), (1, 2, 3))
    assert weights.trigrams == {(1, 2): 3, (1, 4): 3}
    assert (weights.size, len(weights.layers)) == (SIZE, 2)
    assert weights.embedding.shape == (VOCAB, WIDTH)


def ids(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.int32)


def narrower_second_layer(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.1.gate_up"] = tensors["layers.1.gate_up"][:64].contiguous()
    tensors["layers.1.down"] = tensors["layers.1.down"][:, :32].contiguous()


CHANGES = {
    "missing": lambda tensors: tensors.pop("head"),
    "without layers": lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers" in name],
    "a layer with a gap before it": lambda tensors: tensors.update({"layers.5.qkv": tensors.pop("layers.1.qkv")}),
    "layers of different widths": narrower_second_layer,
    "of another shape": lambda tensors: tensors.update(head=tensors["head"][:-1].contiguous()),
    "of another checkpoint": lambda tensors: tensors.update(project=tensors["project"][:, :-1].contiguous()),
    "of no width": lambda tensors: tensors.update(final_norm=tensors["final_norm"][:0]),
    "no number": lambda tensors: tensors["head"].fill_(float("nan")),
    "a token too high": lambda tensors: tensors.update(answer_tokens=ids(VOCAB)),
    "a token below 0": lambda tensors: tensors.update({"mark.0": ids(-1)}),
    "tokens that are no integers": lambda tensors: tensors.update({"mark.0": torch.tensor([7.0])}),
    "an empty mark": lambda tensors: tensors.update({"mark.0": ids()}),
    "without trigrams": lambda tensors: tensors.pop("always"),
    "trigrams of two": lambda tensors: tensors.update(always=ids(1, 2, 3, 4).reshape(2, 2)),
    "a trigram with a token too high": lambda tensors: tensors.update(always=ids(1, 2, VOCAB).reshape(1, 3)),
    "no mark": lambda tensors: tensors.pop("mark.0"),
    "a mark with a gap before it": lambda tensors: tensors.update({"mark.2": ids(7)}),
    **{
        f"{name} of another type": lambda tensors, name=name: tensors.update({name: tensors[name].float()})
        for name in ("project", "bias", "head", "final_norm", "layers.0.qkv", "layers.1.down")
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_inconsistent_tensors_are_refused_by_name(tmp_path: Path, change: str) -> None:
    _, embedding = write_draft_model(tmp_path)
    tensors = load_file(tmp_path / DRAFT_MODEL)
    CHANGES[change](tensors)
    save_file(tensors, tmp_path / DRAFT_MODEL)
    with pytest.raises(WeightsError, match=r"draft\.model"):
        load_weights(tmp_path, embedding)


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    _, embedding = write_draft_model(tmp_path)
    (tmp_path / DRAFT_MODEL).write_bytes(content)
    with pytest.raises(WeightsError, match=r"draft\.model"):
        load_weights(tmp_path, embedding)
