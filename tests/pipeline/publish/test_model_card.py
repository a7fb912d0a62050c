"""The model card has only what was measured, and nothing about the machine on which it was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.publish.errors import PublishError
from pipeline.publish.model_card import is_ours, model_card, recorded
from pipeline.publish.safe_folder import safe_folder
from serving.errors import WeightsError
from tests import small_model
from tests.pipeline.publish.locked_weights import lock, locked_weights, record


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return locked_weights(tmp_path, size=50_000)


def card(folder: Path) -> str:
    verified = safe_folder(folder, None)
    return model_card("org/tiny", verified, *recorded(verified, None))


def test_it_has_the_measurements_of_scripts_prepare(weights):
    record(weights)
    text = card(weights)
    for row in (
        f"| base | hf://maker/base-7b@{'a' * 40} |",
        "| adapter | my-adapter |",
        "| merge | rounding nf4, changed 9, tensors 20 |",
        "| relative error of the merge against the live adapter | nf4 0.0012 |",
        "| quantization | quant method awq, bits 4, group size 128, zero point yes, version gemm |",
        "| weights.mean | 0.01235 |",
        "| scores.measures.exact.after | 88.8 |",
        "| failures | prompts.jsonl is short, see x.txt |",
        "| merge | 12.5 s, 1.00 GiB at the peak |",
        f"`{safe_folder(weights, None).set_digest}`",
        "scripts/fetch hf://org/tiny weights/tiny",
    ):
        assert row in text, text
    assert "someone" not in text and "/home" not in text, "no path of this machine is published"
    assert "layer 98" not in text, "a row for each layer would push the rest out of the card"


def test_without_a_record_it_has_no_figures(weights):
    text = card(weights)
    assert "No figures are given, because no record" in text
    for claim in ("Comparison", "Evaluation", "base", "adapter", "merge", "What each step took"):
        assert claim not in text


def test_a_record_of_the_older_name_is_read(weights):
    path = record(weights)
    older = json.loads(path.read_text())
    older["gate"] = older.pop("comparison")
    path.unlink()
    weights.with_name("tiny.road.json").write_text(json.dumps(older))
    assert "| scores.measures.exact.after | 88.8 |" in card(weights)


def test_the_search_that_made_the_weights_is_named(weights):
    """Where the comparison refused the first checkpoint, a later step quantized again."""
    steps = json.loads(record(weights).read_text())["steps"]
    record(weights, steps=[*steps, {"name": "quantize-closer", "report": {"made_with": "a second search"}}])
    text = card(weights)
    assert "| calibration | made with a second search |" in text
    searched = {"name": "quantize-closer", "report": {"calibration_tokens": 32768, "made_with": "a search"}}
    reused = {"name": "quantize-mixed", "report": {"made_with": "the same search"}}
    record(weights, steps=[*steps, searched, reused])
    assert "| calibration | calibration tokens 32,768, made with the same search |" in card(weights)


def test_a_record_of_other_tensors_is_not_used(weights):
    """Its figures would be those of other weights."""
    report = json.loads(record(weights).read_text())["files"]
    report["model.safetensors"]["sha256"] = "0" * 64
    record(weights, files=report)
    text = card(weights)
    assert "is of another model.safetensors" in text
    assert "88.8" not in text and "maker" not in text


def test_a_record_in_another_form_is_ignored(weights):
    files = json.loads(record(weights).read_text())["files"]
    for odd in ({"steps": "none"}, {"base": "smollm2"}, {"gate": [1, 2]}, {"machine": None, "steps": [1, {}]}):
        record(weights, files=files, **odd)
        assert is_ours(card(weights))
    weights.with_name("tiny.prepare.json").write_text("{")
    with pytest.raises(PublishError, match="is not JSON"):
        card(weights)


def test_it_recognizes_its_own_text(weights):
    text = card(weights)
    assert is_ours(text)
    assert not is_ours(text.replace("# tiny", "# mine"))
    assert not is_ours("# mine")
    assert not is_ours("")


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        (
            "notes.txt",
            b"export HF_TOKEN=hf_" + b"aBcDeFgHiJ" * 3 + b"aBcD\n",
            "notes.txt holds a token of the model hub",
        ),
        ("notes.txt", b"r8_" + b"a1" * 18 + b"a", "a token of Replicate"),
        ("notes.txt", b"x" * (16 << 20) + b" ghp_" + b"a1" * 18, "a token of GitHub"),
        ("id.txt", b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + b"A" * 70, "a private key"),
        ("merges.dat", b"\x80\x04\x95abc", "merges.dat is pickled"),
        ("weights.dat", b"PK\x03\x04abc", "weights.dat is pickled"),
    ],
)
def test_files_that_must_not_be_published_are_refused(weights, name, data, named):
    (weights / name).write_bytes(data)
    lock(weights)
    with pytest.raises(PublishError) as error:
        safe_folder(weights, None)
    assert named in str(error.value)
    for secret in ("aBcDeFgHiJ", "a1a1", "AAAA"):
        assert secret not in str(error.value)


def test_only_locked_files_are_published(weights):
    (weights / "extra.txt").write_text("mine")
    with pytest.raises(WeightsError, match=r"extra: extra\.txt"):
        safe_folder(weights, None)
    (weights / "extra.txt").unlink()
    weights.with_name("tiny.lock").unlink()
    with pytest.raises(PublishError, match="no lock names tiny"):
        safe_folder(weights, None)


@pytest.mark.weights
def test_a_real_checkpoint_raises_no_false_alarm():
    """Vocabularies have pieces such as "sk-" and "BEGIN", which must not prevent publishing."""
    assert safe_folder(small_model.WEIGHTS, None).name == small_model.RECIPE.name
