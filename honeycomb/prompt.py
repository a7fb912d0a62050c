r"""The prompts that models were trained on, with user text that cannot change their structure.

Owns: the two templates, and what a question may be. Knows nothing of tokens: a tokenizer must
read the text as plain text, without special tokens (and the package's does).

A question is written as a JSON string and the columns as a Python list, so quotes, newlines and
backslashes are escaped; ordinary text looks as if it were inserted verbatim. `###` begins a
section, so its first `#`s are escaped in user text: a prompt has the same sections for any input.

    build_prompt(check_nlq("slowest traces"), ("name", "duration_ms"), "columns-first")
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

from honeycomb.errors import InputError
from honeycomb.profile import PromptTemplate

MAX_NLQ_CHARACTERS = 2_000

# The words of question-first follow the running example; a model trained on other words needs its own.
_TEMPLATES: dict[PromptTemplate, str] = {
    "question-first": (
        "Honeycomb is an observability platform for inspecting trace data. You are an assistant that takes "
        "a natural language query (NLQ) and a list of valid columns and produces a Honeycomb query.\n\n"
        "### Instruction:\n\nNLQ: {nlq}\n\nColumns: {columns}\n\n### Response:\n"
    ),
    "columns-first": (
        "Honeycomb is an observability platform. Write the Honeycomb query that answers the question, "
        "using only the columns given.\n\n"
        "### Columns:\n{columns}\n\n### NLQ:\n{nlq}\n\n### Response:\n"
    ),
}

# What stands once in a prompt, right before what a draft model reads; of a long prompt it reads the end.
DRAFT_MARKS: dict[PromptTemplate, tuple[str, ...]] = {
    "question-first": ("### Instruction:\n\nNLQ:",),
    "columns-first": ("### Columns:\n", "### NLQ:\n"),
}

_HEADER_MARK = re.compile("#(?=##)")  # every # that begins a ###, also inside a longer run


def check_nlq(nlq: str) -> str:
    """The question without outer white space.

    Raises:
        InputError: it is blank, over 2,000 characters, or not text that UTF-8 can hold.
    """
    if len(nlq) > MAX_NLQ_CHARACTERS:
        raise InputError(
            "nlq", f"{len(nlq):,} characters, the limit is {MAX_NLQ_CHARACTERS:,}", "shorten the question"
        )
    for position, character in enumerate(nlq):
        if unicodedata.category(character) == "Cs":
            problem = f"half a surrogate pair (U+{ord(character):04X}) at character {position + 1}"
            raise InputError("nlq", problem, "send valid Unicode, at most 2,000 characters")
    if not any(character.isprintable() and not character.isspace() for character in nlq):
        raise InputError("nlq", "is blank", "ask a question of 1 to 2,000 characters")
    return nlq.strip()


def build_prompt(nlq: str, columns: Sequence[str], template: PromptTemplate) -> str:
    """The text that the model continues with its answer."""
    question = _HEADER_MARK.sub(r"\\u0023", json.dumps(nlq, ensure_ascii=False))
    names = _HEADER_MARK.sub(r"\\x23", repr(list(columns)))
    before, between, after = re.split(r"\{nlq\}|\{columns\}", _TEMPLATES[template])
    first, second = (question, names) if template == "question-first" else (names, question)
    return f"{before}{first}{between}{second}{after}"
