r"""Build the prompts that models were trained on, so that user text cannot change their structure.

The question is written as a JSON string and the columns as a Python list, which escapes quotes, newlines and
backslashes; ordinary text looks as if it were inserted verbatim. `###` starts a section, so its first `#`s are escaped
in user text: a prompt has the same sections for any input. The tokenizer must not read special tokens in the text; the
package's does not.

    build_prompt(check_nlq("slowest traces"), ("name", "duration_ms"), "columns-first")
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

from tasks.errors import InputError
from tasks.honeycomb.options import PromptTemplate

MAX_NLQ_CHARACTERS = 2_000

# The wording of question-first is the running example's; a model trained on another one needs its own template.
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

# Texts that occur once in a prompt, after which a draft model reads it; of a long prompt it reads only the end.
DRAFT_MARKERS: dict[PromptTemplate, tuple[str, ...]] = {
    "question-first": ("### Instruction:\n\nNLQ:",),
    "columns-first": ("### Columns:\n", "### NLQ:\n"),
}

_HEADER = re.compile("#(?=##)")  # every # that starts a ###, also inside a longer run


def check_nlq(nlq: str) -> str:
    """The question without surrounding white space.

    Raises:
        InputError: it is blank, longer than 2,000 characters, or has an unpaired surrogate.
    """
    if len(nlq) > MAX_NLQ_CHARACTERS:
        raise InputError("nlq", f"{len(nlq):,} characters, the limit is {MAX_NLQ_CHARACTERS:,}", "shorten the question")
    for position, character in enumerate(nlq):
        if unicodedata.category(character) == "Cs":
            problem = f"unpaired surrogate U+{ord(character):04X} at character {position + 1}"
            raise InputError("nlq", problem, "send valid Unicode, at most 2,000 characters")
    if not any(character.isprintable() and not character.isspace() for character in nlq):
        raise InputError("nlq", "is blank", "ask a question of 1 to 2,000 characters")
    return nlq.strip()


def build_prompt(nlq: str, columns: Sequence[str], template: PromptTemplate) -> str:
    """The prompt, which the model continues with its answer."""
    question = _HEADER.sub(r"\\u0023", json.dumps(nlq, ensure_ascii=False))
    names = _HEADER.sub(r"\\x23", repr(list(columns)))
    before, between, after = re.split(r"\{nlq\}|\{columns\}", _TEMPLATES[template])
    first, second = (question, names) if template == "question-first" else (names, question)
    return f"{before}{first}{between}{second}{after}"
