"""The tokenizer as vLLM shall read it: with the end token that ours has.

Owns: a folder with the two files that say so. vLLM's grammar backend ends an answer with the token
that tokenizer_config.json calls eos_token, and with token 0 where nothing does, whatever stop tokens
a request names. Ours come from other files (`serving.text`).

    AsyncEngineArgs(model=str(weights_dir), tokenizer=str(tokenizer_folder(tokenizer)))
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers

from serving.text import Tokenizer


def tokenizer_folder(tokenizer: Tokenizer) -> Path:
    """A new folder, removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = tokenizer.to_json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(tokenizer.eos_token_ids[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
