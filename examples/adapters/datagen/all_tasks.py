"""The example adapters, their training data as files, and the list of them with their digests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from examples.adapters.datagen import (
    article_titles,
    contact_messages,
    date_phrases,
    home_commands,
    log_lines,
    measure_phrases,
    review_sentences,
    support_requests,
)
from serving.weights.adapter_files import TENSORS, adapter_digest

FOLDER: Final = Path(__file__).parent.parent  # with a folder for each adapter
_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_ALL: Final = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ExampleAdapter:
    """How one of the adapters is trained; with its rank and linear layers it takes less than 2 MB."""

    example: Callable[[random.Random], tuple[str, dict[str, Any]]]
    rank: int
    targets: tuple[str, ...]


# Ranks and layers differ, as those of a real team would.
EXAMPLE_ADAPTERS: Final[Mapping[str, ExampleAdapter]] = MappingProxyType(
    {
        "contacts": ExampleAdapter(contact_messages.example, 8, _ATTENTION),
        "dates": ExampleAdapter(date_phrases.example, 3, _ALL),
        "home": ExampleAdapter(home_commands.example, 6, _ATTENTION),
        "intents": ExampleAdapter(support_requests.example, 4, _ATTENTION),
        "logs": ExampleAdapter(log_lines.example, 8, _ATTENTION),
        "sentiment": ExampleAdapter(review_sentences.example, 4, _ATTENTION),
        "slugs": ExampleAdapter(article_titles.example, 8, _ATTENTION),
        "units": ExampleAdapter(measure_phrases.example, 3, _ALL),
    }
)


QUESTIONS: Final = 64  # for benchmarks
_LIST_HEAD: Final = """# The example adapters of SmolLM2-135M-Instruct. README.md beside says how to serve them.
adapters:
"""


def write_examples(name: str, folder: Path, *, train: int, validation: int) -> None:
    """Write train.jsonl, validation.jsonl and questions.jsonl of different examples; the same bytes each time."""
    rng, seen = random.Random(name), dict[str, dict[str, Any]]()
    while len(seen) < train + validation + QUESTIONS:
        text, answer = EXAMPLE_ADAPTERS[name].example(rng)
        seen.setdefault(text, answer)
    lines = [json.dumps({"input": text, "output": answer}, ensure_ascii=False) for text, answer in seen.items()]
    folder.mkdir(parents=True, exist_ok=True)
    start = validation + train
    files = {"validation": lines[:validation], "train": lines[validation:start], "questions": lines[start:]}
    for file, chosen in files.items():
        (folder / f"{file}.jsonl").write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def write_list(folder: Path) -> None:
    """Write adapters.yaml for the adapters in the folders beside it."""
    entries = [
        f"  - name: {adapter.name}\n    source: {adapter.name}\n    task: {adapter.name}\n    max_rank: 8\n"
        f"    digest: {adapter_digest(adapter)}\n"
        for adapter in sorted(path.parent for path in folder.glob(f"*/{TENSORS}"))
    ]
    (folder / "adapters.yaml").write_text(_LIST_HEAD + "".join(entries), encoding="utf-8")
