"""Read the predictions that a gateway keeps, and logs of prompts and answers, to learn from what was asked."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import tokenizers

from pipeline.train.errors import TrainingError
from tasks.evaluation.cases import read_records

_MAGIC: Final = b"SQLite format 3\0"
_NEWEST: Final = 20_000  # predictions that are read
# What says how an answer is chosen, not what is asked: drafts are for the likeliest tokens.
_LEFT_OUT: Final = ("adapter", "temperature", "top_p", "top_k", "seed")
_TEXTS: Final = {"prompt", "answer"}  # the keys of a line of a log


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database, as a gateway's is."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_predictions(path: Path, adapter: str | None) -> list[tuple[Mapping[str, Any], str]]:
    """The inputs and the output of the newest successful predictions, the newest last; of equal inputs the newest.

    Nothing is locked for long and nothing is written, so that the gateway may run or not.

    Args:
        path: the database of a gateway, `GATEWAY_DATABASE`.
        adapter: the name of the adapter that they asked for; None for those that asked for none.

    Raises:
        TrainingError: it is no such database, or has no such prediction.
    """
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    others: Counter[str] = Counter()
    for inputs, output in _rows(path):
        if (name := inputs.get("adapter") or None) != adapter:
            others["no adapter" if name is None else f"adapter {name!r}"] += 1
            continue
        asked = {key: value for key, value in inputs.items() if key not in _LEFT_OUT and value is not None}
        text = "".join(output) if isinstance(output, list) and all(isinstance(o, str) for o in output) else output
        if isinstance(text, str):
            found.setdefault(json.dumps(asked, sort_keys=True), (asked, text))
    if not found:
        wanted = "without an adapter" if adapter is None else f"with the adapter {adapter!r}"
        there = ", ".join(f"{count:,} with {name}" for name, count in others.items()) or "none"
        raise TrainingError(f"{path} has no successful prediction {wanted}, which are learned here; it has {there}")
    return list(found.values())[::-1]


def _rows(path: Path) -> list[tuple[Mapping[str, Any], Any]]:
    """Inputs and outputs, the newest first."""
    query = "SELECT input, output FROM predictions WHERE status = 'succeeded' ORDER BY number DESC LIMIT ?"
    # Without a log of changes nobody has it open. Then it is read as it is, which leaves no new files beside it.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?{mode}", uri=True)) as database:
            rows = database.execute(query, (_NEWEST,)).fetchall()
        return [(json.loads(inputs), json.loads(output)) for inputs, output in rows]
    except (sqlite3.Error, ValueError) as error:
        raise TrainingError(f"{path} is no database of a gateway's predictions: {error}") from error


def has_texts(path: Path) -> bool:
    """Whether the first line of a JSONL file is a prompt and an answer."""
    record = next((record for _, record in read_records(path, "give another file")), None)
    return isinstance(record, dict) and record.keys() >= _TEXTS


def read_texts(path: Path, tokenizer: Path) -> list[tuple[list[int], list[int]]]:
    """Token ids of prompts and answers that are written out, as a server for completions reads them.

    Args:
        path: JSONL of {"prompt", "answer"}; the prompt is all that the model reads, with its control words.
        tokenizer: the checkpoint's tokenizer.json.

    Raises:
        TrainingError: a line has another form.
        CaseFileError: a line is not JSON.
    """
    encoder, found = tokenizers.Tokenizer.from_file(str(tokenizer)), []
    encoder.no_truncation()
    encoder.no_padding()
    for number, record in read_records(path, "give another file"):
        texts = [record.get(key) for key in ("prompt", "answer")] if isinstance(record, dict) else []
        if len(texts) != len(_TEXTS) or not all(isinstance(text, str) for text in texts):
            raise TrainingError(f'{path}:{number}: a line is {{"prompt": text, "answer": text}}')
        prompt, answer = texts
        found.append((encoder.encode(prompt).ids, encoder.encode(answer, add_special_tokens=False).ids))
    return found
