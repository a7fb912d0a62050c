"""An adapter's tokenizer may add tokens for which the base's embedding has rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken

from serving.adapters.adapter_companions import adapter_tokenizers, check_companions
from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, WeightsError
from tests import tiny_tokenizers

TOKENIZER = tiny_tokenizers.byte_level()
FIRST = TOKENIZER.vocab_size


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": FIRST + 2}))
    return tiny_tokenizers.save(TOKENIZER, folder)


def extended(folder: Path, *, special: tuple[str, ...] = (), plain: tuple[str, ...] = ()) -> Path:
    """A folder with the base's tokenizer and more tokens."""
    folder.mkdir(exist_ok=True)
    backend = tokenizers.Tokenizer.from_str(TOKENIZER.to_json())
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.add_tokens(list(plain))
    backend.save(str(folder / "tokenizer.json"))
    return folder


def found(task: Path | None, base: Path) -> dict[str, Any]:
    return adapter_tokenizers({"a": AdapterEntry("a", Path("a"), task=task)}, base, TOKENIZER)


def test_added_tokens_that_fit_are_read_and_written(tmp_path: Path, base: Path) -> None:
    own = found(extended(tmp_path / "own", special=("<|tool|>",), plain=("<call>",)), base)["a"]
    assert own.encode("a <call>") == [*TOKENIZER.encode("a "), FIRST + 1]
    assert own.decode([FIRST, FIRST + 1]) == "<call>"  # a special token has no text
    assert TOKENIZER.decode([FIRST + 1]) == ""
    assert own.eos_token_ids == TOKENIZER.eos_token_ids


def test_the_base_s_own_tokenizer_is_not_loaded_again(tmp_path: Path, base: Path) -> None:
    assert found(None, base) == {} == found(extended(tmp_path / "same"), base)


def test_tokens_without_a_row_and_other_vocabularies_are_refused_by_name(tmp_path: Path, base: Path) -> None:
    far = extended(tmp_path / "far", plain=("<a>", "<b>", "<c>"))
    message = rf"adapter 'a': .* the token '<c>' has the id {FIRST + 2}, and .* {FIRST + 2} rows"
    with pytest.raises(AdapterError, match=message):
        found(far, base)
    content = json.loads((base / "tokenizer.json").read_text())
    again = [*content["added_tokens"], content["added_tokens"][0] | {"content": "<x>"}]
    for change, message in (
        ({"added_tokens": []}, "is missing or has other options"),
        ({"model": content["model"] | {"merges": []}}, "only added tokens may"),
        ({"added_tokens": again}, "which another token has"),
    ):
        (far / "tokenizer.json").write_text(json.dumps(content | change))
        with pytest.raises(AdapterError, match=message):
            found(far, base)


def test_an_adapter_s_additions_are_used_only_where_its_task_has_them(tmp_path: Path, base: Path) -> None:
    own = extended(tmp_path / "own", plain=("<call>",))
    check_companions(own, own, base=base)
    with pytest.raises(WeightsError, match=r"has its own tokenizer\.json, which differs .* set `task`"):
        check_companions(own, base, base=base)
