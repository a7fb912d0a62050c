"""Write the tokenizer for vLLM: in a form that its grammar backend reads, and with the end token that ours has.

vLLM's grammar backend ends an answer with the eos_token of tokenizer_config.json, or with token 0 if there is none,
whatever stop tokens a request has. Our end tokens come from other files (`serving.text`). vLLM itself takes prompts as
token ids and gives none of the texts, so it needs the tokenizer for grammars only.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers

from serving.errors import WeightsError
from serving.grammar.compiler import grammar_vocabulary
from serving.text import Tokenizer


def tokenizer_folder(tokenizer: Tokenizer, *, vocab_size: int) -> Path:
    """A new folder with tokenizer.json and tokenizer_config.json; it is removed when this process ends.

    Args:
        tokenizer: of the checkpoint.
        vocab_size: width of the model's logits.

    Raises:
        WeightsError: see `grammar_vocabulary`; or no end token has logits.
    """
    text = grammar_vocabulary(tokenizer.to_json(), vocab_size)
    ends = [token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size]
    if not ends:
        raise WeightsError(
            f"the end token {tokenizer.eos_token_ids[0]} has no logits, of which the model has {vocab_size}, so no "
            "answer would end; name another eos_token_id in generation_config.json"
        )
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    end = tokenizers.Tokenizer.from_str(text).id_to_token(ends[0])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
