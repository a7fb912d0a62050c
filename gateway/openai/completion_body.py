"""The body of a completion: a prompt that is continued."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from gateway.openai.parameters import MAX_CHOICES, SharedBody, only


class CompletionBody(SharedBody):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: Annotated[JsonValue, only(1)] = None
    echo: Annotated[JsonValue, only(False)] = None
    suffix: Annotated[JsonValue, only("")] = None

    @property
    def prompts(self) -> list[str]:
        """One or more texts, each of which gets `n` answers."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def faults(self) -> dict[str, str]:
        """See `SharedBody.faults`."""
        total = len(self.prompts) * (self.n or 1)
        return super().faults() | (
            {"n": f"makes {total} answers to all prompts; the limit is {MAX_CHOICES}"} if total > MAX_CHOICES else {}
        )
