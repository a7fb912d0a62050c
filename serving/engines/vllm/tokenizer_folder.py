"""Write the tokenizer for vLLM, with the end token that our tokenizer has.

vLLM's grammar backend ends an answer with the eos_token of tokenizer_config.json, or with token 0 if there is none,
whatever stop tokens a request has. Our end tokens come from other files (`serving.text`).
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
    """A new folder with tokenizer.json and tokenizer_config.json; it is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = tokenizer.to_json()
    end = tokenizers.Tokenizer.from_str(text).id_to_token(tokenizer.eos_token_ids[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
