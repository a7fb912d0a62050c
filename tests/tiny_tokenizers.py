"""Small real tokenizers of both families, trained here in milliseconds.

tokenizer = byte_level(); save(tokenizer, tmp_path)
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

from serving.text import Tokenizer

LINES = [
    "the slowest traces of the checkout service in the last hour, grouped by name",
    '{"calculations": [{"op": "COUNT"}], "filters": [{"column": "error", "op": "=", "value": true}]}',
    "café naïve 你好 世界 Привет мир 🙂🙃 1234567890",
]
END = "<|im_end|>"
# Ranges of Unicode: scripts, combining marks, punctuation without width, emoji, flags, U+FFFD itself
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x400, 0x500), (0x900, 0xA00), (0x300, 0x370), (0x2000, 0x2070)]
BLOCKS += [(0x4E00, 0x5000), (0xAC00, 0xAD00), (0x1F300, 0x1F700), (0x1F1E6, 0x1F200), (0xFFF0, 0xFFFE)]


def byte_level(num_end_tokens: int = 1) -> Tokenizer:
    """As SmolLM2's: byte-level BPE, no BOS; id 0 ends an answer.

    With more end tokens (0, 2, 3, …) random models come to an end too.
    """
    special = [END, "<|im_start|>", *(f"<|end{i}|>" for i in range(2, num_end_tokens + 1))]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(LINES * 3, trainer)
    return Tokenizer(backend, eos_token_ids=[0, *range(2, len(special))])


def metaspace() -> Tokenizer:
    """As Mistral's: SentencePiece spaces, byte fallback, and a post-processor that adds one BOS."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *sorted({c for line in LINES[:2] for c in line if c != " "}), "é"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("s", "t"), ("e", "r"), ("▁", "s")]
    pieces += [left + right for left, right in merges]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(dict.fromkeys(pieces))},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend, eos_token_ids=[2])


def unigram() -> Tokenizer:
    """As T5's: SentencePiece's Unigram model, whose vocabulary holds the control tokens as pieces."""
    pieces = ["<unk>", "<s>", "</s>", "▁the", "▁", *sorted({c for c in "".join(LINES[:2]) + "<>/|" if c != " "})]
    vocab = [(piece, 0.0 if index < 3 else -float(index)) for index, piece in enumerate(pieces)]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return Tokenizer(backend, eos_token_ids=[2])


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    """Write what `Tokenizer.from_dir` reads."""
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    eos = {"eos_token_id": list(tokenizer.eos_token_ids)}
    (folder / "generation_config.json").write_text(json.dumps(eos), encoding="utf-8")
    return folder


def random_text(rng: random.Random) -> str:
    """Up to 24 characters of a few scripts."""
    blocks = rng.choices(BLOCKS, k=rng.randint(1, 4))
    return "".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(rng.randint(0, 24)))
