"""Map vocabulary pieces of a tokenizer to the bytes that they stand for.

There are two encodings: byte-level BPE and SentencePiece. With bytes instead of decoded text, a stream can be cut at
any token, and its parts still concatenate to the whole text.

    to_bytes = piece_reader(json.loads(tokenizer.decoder.__getstate__()))
    to_bytes("Ġcafé")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from serving.errors import WeightsError

PieceReader = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def piece_reader(decoder: dict[str, Any] | None) -> PieceReader:
    """The function from a vocabulary piece to its bytes, chosen by tokenizer.json's `decoder`.

    Raises:
        WeightsError: the decoder is of an unknown kind.
    """
    steps = _flatten(decoder)
    types = {step["type"] for step in steps}
    if types == {"ByteLevel"}:
        return _byte_level_bytes
    if types and types <= _SENTENCEPIECE_STEPS:
        return _sentencepiece_reader(steps)
    raise WeightsError(
        f"tokenizer.json has the decoder {sorted(types) or None}; supported are ByteLevel and the "
        f"SentencePiece steps {sorted(_SENTENCEPIECE_STEPS)}. Convert the tokenizer to one of them."
    )


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable Latin-1 stands for itself, other bytes are characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(moved)}


_ALPHABET = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in piece])
    except KeyError:  # an added token, which is stored as text
        return piece.encode()


def _sentencepiece_reader(steps: list[dict[str, Any]]) -> PieceReader:
    """The reader of pieces with `▁` for a space and, with byte fallback, `<0xE2>` for a byte.

    A `Strip` step is left out on purpose: it removes the space that SentencePiece puts before the first word of a text,
    but generated text continues a prompt.
    """
    for step in steps:
        if step["type"] == "Replace" and "String" not in step["pattern"]:
            raise WeightsError(
                f"tokenizer.json has a decoder that replaces the regular expression {step['pattern']}; supported are "
                "replacements of a text, so convert the tokenizer to them"
            )
    replacements = [
        (step["pattern"]["String"], step["content"]) if step["type"] == "Replace" else (step["replacement"], " ")
        for step in steps
        if step["type"] in ("Replace", "Metaspace")
    ]
    # A Metaspace decoder would show `<0xE2>` as text, but the grammar takes it for a byte, as the model was trained to.
    has_byte_pieces = any(step["type"] in ("ByteFallback", "Metaspace") for step in steps)

    def to_bytes(piece: str) -> bytes:
        match = _BYTE_PIECE.fullmatch(piece) if has_byte_pieces else None
        if match is not None:
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return to_bytes
