"""Says where the text of a finished answer breaks a constraint, without the model's vocabulary."""

from __future__ import annotations

from llguidance import LLTokenizer

from serving.constraints import Constraint
from serving.grammar.guard import compile_constraint


class TextCheck:
    """Checks answers against a constraint.

    Raises:
        GrammarError: it does not compile.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._vocabulary = LLTokenizer("byte")
        self._matcher = compile_constraint(constraint, self._vocabulary)

    def fault(self, answer: str) -> str | None:
        """Where an answer breaks the constraint; None if it is allowed."""
        tokens = self._vocabulary.tokenize_bytes(answer.encode())
        matcher = self._matcher.deep_copy()
        taken = matcher.try_consume_tokens(tokens)
        return None if taken == len(tokens) and matcher.is_accepting() else _explain(answer.encode(), taken)


def _explain(text: bytes, taken: int) -> str:
    """Where an answer breaks the constraint; `taken` is the number of bytes that it allows."""
    before, after = (part.decode(errors="replace") for part in (text[max(0, taken - 30) : taken], text[taken:][:30]))
    if text[:taken].rstrip(b"u0123456789abcdefABCDEF").endswith(b"\\") or after.startswith("/"):
        hint = "; a constrained answer has no escaped characters: train on json.dumps(answer, ensure_ascii=False)"
    else:
        hint = ""
    return f"after {before!r} the grammar does not allow {after!r}{hint}" if after else f"ends too early: {before!r}"
