"""Reads a checkpoint's tokenizer, and converts text to token ids and token ids to text.

Vocabulary pieces stand for bytes, in two encodings: byte-level BPE and SentencePiece. With bytes instead of decoded
text, a stream can be cut at any token, and its parts still concatenate to the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers

from serving.errors import ContextLengthError, InvalidRequestError, WeightsError

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


class Tokenizer:
    """A checkpoint's tokenizer. Safe to share between threads.

    Args:
        backend: the tokenizers library's object; do not change it afterwards.
        eos_token_ids: ids that end an answer; the first is used at the end of a grammar.
        context_length: texts that have clearly more tokens are refused before they are read to their end.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, eos_token_ids: Iterable[int], context_length: int | None = None
    ) -> None:
        # A tokenizer.json may carry the training run's truncation, which would cut prompts silently.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self._backend = backend
        self._special_ids = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        decoder = backend.decoder
        self._piece_bytes = piece_reader(None if decoder is None else json.loads(decoder.__getstate__()))
        self._bytes_of: dict[int, bytes] = {}  # filled on first use, because a whole vocabulary takes 50 ms
        self._without_space: dict[int, int] = {}
        self.bos_token_ids = self._find_bos()  # that `encode` puts in front; empty if the checkpoint has no BOS
        self.context_length = context_length
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        _check_eos(self.eos_token_ids, self.vocab_size)

    @classmethod
    def from_dir(cls, weights_dir: Path, *, context_length: int | None = None) -> Tokenizer:
        """Read tokenizer.json, and the end tokens from all configuration files beside it.

        Raises:
            WeightsError: a file is missing or cannot be read, or no file names an end token.
        """
        path = weights_dir / "tokenizer.json"
        if not path.is_file():
            raise WeightsError(f"{path} is missing; build or fetch the weights, or set WEIGHTS_DIR")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise WeightsError(f"{path} is not a tokenizer of the tokenizers library: {error}") from error
        return cls(
            backend,
            eos_token_ids=_union(named_end_tokens(weights_dir, backend), backend),
            context_length=context_length,
        )

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> Tokenizer:
        """The same as a tokenizer of the transformers library, which vLLM uses; later changes of one leave the other.

        Args:
            tokenizer: what `AutoTokenizer` returns; it may name no end token, for who needs none.

        Raises:
            WeightsError: it is none of the tokenizers library, or of an unknown kind.
        """
        if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
            raise WeightsError(f"the tokenizer {type(tokenizer).__name__} is none of the tokenizers library")
        return cls(tokenizers.Tokenizer.from_str(backend.to_str()), eos_token_ids=[tokenizer.eos_token_id or 0])

    @property
    def vocab_size(self) -> int:
        """Token ids are below this. A model's output may have more rows, which are unused."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text, none of them special except the BOS.

        Raises:
            InvalidRequestError: see `encode_text`.
        """
        ids = encode_text(self._backend, text, self.context_length)
        return [*self.bos_token_ids, *ids] if add_bos else ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens append to earlier text. Special tokens append nothing.

        Invalid UTF-8 becomes U+FFFD. A leading space is kept, although SentencePiece would remove it, because
        generated text continues a prompt.
        """
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; empty for a special token and for an unused id."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._read_token(token_id)
        return known

    def without_space(self, token_id: int) -> int:
        """The token of the same word without its leading space, if there is one; otherwise the same token."""
        known = self._without_space.get(token_id)
        if known is None:
            piece = self._backend.id_to_token(token_id) or ""
            plain = self._backend.token_to_id(piece[1:]) if piece[:1] in ("Ġ", "▁") else None
            known = self._without_space[token_id] = token_id if plain is None else plain
        return known

    def to_json(self) -> str:
        """The content of tokenizer.json, for `llguidance.LLTokenizer`."""
        return self._backend.to_str()

    def _read_token(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None or token_id in self._special_ids else self._piece_bytes(piece)

    def _find_bos(self) -> tuple[int, ...]:
        """The tokens that the checkpoint's post-processor puts before a text; those that it puts after are ignored."""
        plain = self._backend.encode("a", add_special_tokens=False).ids
        framed = self._backend.encode("a", add_special_tokens=True).ids
        starts = range(len(framed) - len(plain) + 1)
        return tuple(framed[: next(i for i in starts if framed[i : i + len(plain)] == plain)])


def encode_text(backend: tokenizers.Tokenizer, text: str, context_length: int | None = None) -> list[int]:
    """Token ids of a text, without any added tokens.

    Args:
        backend: the tokenizers library's object.
        text: the text to encode.
        context_length: a text of more than four times as many bytes is first read in parts, up to the part with which
            it clearly has more tokens: 64 KiB of digits take 75 ms of a core.

    Raises:
        ContextLengthError: the text has more than `context_length` tokens.
        InvalidRequestError: the text is not Unicode (it holds half of a surrogate pair).
    """
    if context_length is not None and len(text.encode(errors="surrogatepass")) > 4 * context_length:
        size, count = max(64, context_length // 4), 0
        for start in range(0, len(text), size):
            count += len(encode_text(backend, text[start : start + size]))
            if count > context_length + context_length // 8:  # cuts may change tokens, hence the eighth
                raise ContextLengthError(f"the prompt has more tokens than the model's context of {context_length}")
    try:
        return list(backend.encode(text, add_special_tokens=False).ids)
    except (TypeError, UnicodeEncodeError) as error:
        message = "the text holds half of a surrogate pair, which is not a character; remove it"
        raise InvalidRequestError(message) from error


def context_length(weights_dir: Path) -> int | None:
    """Prompt and answer tokens of a checkpoint, from its config.json; None if that does not say it plainly."""
    config = read_json(weights_dir / "config.json")
    found = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, int) and found > 0 and "factor" not in rope else None


def num_logits(weights_dir: Path) -> int | None:
    """Rows of a checkpoint's embedding, and so tokens that have logits, from its config.json; None if it is silent."""
    config = read_json(weights_dir / "config.json")
    found = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return found if type(found) is int else None


def _check_eos(eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
    if not eos_token_ids:
        raise WeightsError("no end token: name eos_token_id in generation_config.json or config.json")
    for token_id in eos_token_ids:
        if not 0 <= token_id < vocab_size:
            raise WeightsError(f"eos_token_id {token_id} is outside the vocabulary of {vocab_size} tokens")


def named_end_tokens(weights_dir: Path, backend: tokenizers.Tokenizer) -> dict[str, list[int]]:
    """The end tokens that each file of a checkpoint names, in the order of Hugging Face's libraries.

    The tokenizer of a fine-tune often names another one than the configuration of its base, and any of them ends an
    answer.

    Raises:
        WeightsError: a file cannot be read, or names an end token by something else than an id.
    """
    found = {}
    for name in ("generation_config.json", "config.json"):
        value = read_json(weights_dir / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(token_id) is not int for token_id in ids):
            raise WeightsError(f"{weights_dir / name}: eos_token_id is {value!r}; write a number or a list of numbers")
        found[name] = ids
    token = read_json(weights_dir / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    token_id = backend.token_to_id(content) if isinstance(content, str) else None
    found["tokenizer_config.json"] = [] if token_id is None else [token_id]
    return {name: ids for name, ids in found.items() if ids}


def _union(named: dict[str, list[int]], backend: tokenizers.Tokenizer) -> list[int]:
    """All of the first file, and what the others add.

    An ordinary piece of text in a later file is the default of some configuration class. It would end answers in the
    middle.
    """
    lists = list(named.values())
    added = backend.get_added_tokens_decoder()
    return [*chain(*lists[:1]), *(token_id for token_id in chain(*lists[1:]) if token_id in added)]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file.

    Raises:
        WeightsError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not an object")
    return content
