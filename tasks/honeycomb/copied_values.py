r"""The grammar of strings that are copied from the question.

What people filter by stands in their question, so a model need not spell it: it only chooses where a value begins and
ends. llguidance's `substring_chunks` matches some chunks in a row; the chunks here are words and single marks.

    copied_string("url = /a?b=1", WRITINGS["json"])  # STRING: "\"" IN_QUOTES_0 "\"" …
"""

from __future__ import annotations

import json
import re
from typing import Final

from tasks.honeycomb.surface import Writing

# A value never begins or ends inside a word, except before the s of a plural: "GETs", "mutations". Letters beyond
# Armenian are chunks by themselves, because scripts without spaces are among them.
_LETTER: Final = r"[0-9A-Za-z\u00aa-\u058f]"
_CHUNK: Final = re.compile(rf"(?:{_LETTER}{{2,}}[^\W_sS]|[A-Z]+)(?=s\b)|{_LETTER}+|.", re.DOTALL)


def copied_string(question: str, writing: Writing) -> str:
    """The lines of Lark's terminal STRING: a quoted part of the question, as `writing` escapes it, or an empty one."""
    chunks = _CHUNK.findall(question)
    choices, terminals = [], []
    for number, (quote, escape) in enumerate(writing.quotes.items()):
        parts = json.dumps({"substring_chunks": [escape(chunk) for chunk in chunks]})
        terminals.append(f"IN_QUOTES_{number}: %regex {parts}")
        choices.append(f"{json.dumps(quote)} IN_QUOTES_{number} {json.dumps(quote)}")
    return "\n".join([f"STRING: {' | '.join(choices)}", *terminals])
