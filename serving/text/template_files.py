"""Reads a checkpoint's chat templates and its named special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from serving.errors import WeightsError
from serving.text.tokenizer import read_json

SPECIAL_TOKENS: Final = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FILE: Final = "chat_template.jinja"
_MORE: Final = "additional_chat_templates"
_CONFIG: Final = "tokenizer_config.json"


def read_templates(folder: Path) -> dict[str, str]:
    """Jinja sources by name: `default`, and others such as `tool_use`. Empty if the checkpoint has no template.

    As in transformers, chat_template.jinja and the files in additional_chat_templates take precedence over
    tokenizer_config.json.

    Raises:
        WeightsError: a file cannot be read, or does not contain templates.
    """
    paths = {"default": folder / _FILE} | {path.stem: path for path in sorted((folder / _MORE).glob("*.jinja"))}
    found = {name: read_template(path) for name, path in paths.items() if path.is_file()}
    return found or _from_config(folder / _CONFIG)


def read_template(path: Path) -> str:
    """Read a template file.

    Raises:
        WeightsError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path}: cannot be read as text: {error}") from error


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Texts of the tokens by the names that templates use, such as `bos_token`."""
    older, newer = (read_json(folder / name) for name in ("special_tokens_map.json", _CONFIG))
    found = {name: _text_of(newer.get(name) or older.get(name)) for name in SPECIAL_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _text_of(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _from_config(path: Path) -> dict[str, str]:
    match read_json(path).get("chat_template"):
        case None:
            return {}
        case str(source):
            return {"default": source}
        case [*items] if all(_is_named(item) for item in items):
            return {item["name"]: item["template"] for item in items}
    raise WeightsError(
        f"{path}: chat_template is neither a text nor a list of objects with name and template; "
        f"write the template into {path.with_name(_FILE)}"
    )


def _is_named(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
