"""Encodes words as control tokens if a chat template wrote them, and as plain text if a caller did.

This tokenizer gives each control token a secret name. Control words that the template wrote are replaced by these
names, and then the whole prompt is encoded. The result is what the checkpoint's own tokenizer gives, also for spaces
around control tokens. A control word that a caller wrote is not the name of any token, so it stays plain text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import tokenizers

from serving.errors import WeightsError
from serving.text.marked_text import marks_of
from serving.text.tokenizer import Tokenizer, encode_text

Segment = tuple[str, bool]  # a part of a prompt, and whether it is a control token

_SHAPE: Final = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_OWN_RUN: Final = re.compile(rb"\x01+")


class ControlTokens:
    """The control tokens of one checkpoint and its chat template. Safe to share between threads.

    Control tokens are all special tokens, and some of the other added tokens: those of the form `<|…|>`, those in
    `named`, and those in the template that look like markup, such as `<think>`.

    Args:
        tokenizer: the tokenizer of the checkpoint.
        source: the Jinja source of the chat template.
        named: the tokens that tokenizer_config.json names, such as `eos_token`.

    Raises:
        WeightsError: tokenizer.json has an unknown structure, in which the tokens cannot be found.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, named: Collection[str] = ()) -> None:
        content = json.loads(tokenizer.to_json())
        self._ids = {
            token["content"]: int(token["id"])
            for token in content["added_tokens"]
            if token["special"] or token["content"] in named or _is_control(token["content"], source)
        }
        self._structural = set(self._ids.values()) - {_unknown_id(content)}
        nonce = secrets.token_hex(16)  # a caller who knew it could write control tokens
        self._names = {word: f"\ue000{nonce}{index}\ue000" for index, word in enumerate(self._ids)}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        _rename(content, self._names)
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._context_length = tokenizer.context_length

    @property
    def words(self) -> frozenset[str]:
        """The control tokens' texts."""
        return frozenset(self._ids)

    def id_of(self, word: str) -> int:
        """The id of the control token with this text."""
        return self._ids[word]

    def segments(self, text: str) -> Iterator[Segment]:
        """Split a text at its control tokens; a word counts as one only if the template wrote all of its characters."""
        start = 0
        for match in self._own_matches(text):
            yield text[start : match.start()], False
            yield match[0], True
            start = match.end()
        yield text[start:], False

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Token ids. No BOS is added: if a checkpoint needs one, its template writes it.

        Raises:
            InvalidRequestError: see `encode_text`.
            WeightsError: the tokenizer's result has other control tokens.
        """
        parts = list(segments)
        text = "".join(self._names[text] if control else text for text, control in parts)
        ids = encode_text(self._backend, text, self._context_length)
        expected = self.control_ids(self._ids[text] for text, control in parts if control)
        if (found := self.control_ids(ids)) != expected:
            raise WeightsError(f"tokenizer.json: the control tokens {expected} of a prompt are read as {found}")
        return ids

    def control_ids(self, token_ids: Iterable[int]) -> list[int]:
        """The ids that are control tokens, which are the structure of a prompt; `<unk>` does not count."""
        return [token_id for token_id in token_ids if token_id in self._structural]

    def lost_words(self, text: str) -> list[str]:
        """Control words of a text that are not marked as the template's own, in order."""
        own = {match.start() for match in self._own_matches(text)}
        return [match[0] for match in self._pattern.finditer(text) if match.start() not in own]

    def _own_matches(self, text: str) -> Iterator[re.Match[str]]:
        for run in _OWN_RUN.finditer(marks_of(text)):
            yield from self._pattern.finditer(text, run.start(), run.end())


def _is_control(word: str, source: str) -> bool:
    if _SHAPE.fullmatch(word):
        return True
    looks_like_markup = not (word[0].isalnum() or word[-1].isalnum() or word[0].isspace() or word[-1].isspace())
    return len(word) > 2 and looks_like_markup and word in source


def _unknown_id(content: dict[str, Any]) -> int | None:
    """The id of the unknown token; None if the tokenizer has none."""
    model = content["model"]
    unknown = model.get("unk_token")
    found = model.get("unk_id") if unknown is None else model["vocab"].get(unknown)
    return found if isinstance(found, int) else None


def _rename(content: dict[str, Any], names: dict[str, str]) -> None:
    """Rename tokens of a tokenizer.json; their ids stay the same."""
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    content["post_processor"] = None  # it would add tokens that the template adds itself
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in model["vocab"].items()}
    else:  # Unigram: a list of pieces with scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if _is_apart(merge, names)]


def _is_apart(merge: str | list[str], names: dict[str, str]) -> bool:
    """Whether a merge rule of two pieces does not involve these words."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return not {left, right, left + right} & names.keys()
