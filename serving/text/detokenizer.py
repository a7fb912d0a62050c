"""Token ids to text as they come.

Owns: what may be shown already. A delta never ends inside a character and never holds a part of
a stop string. Knows nothing of where the tokens come from.

    detokenizer = IncrementalDetokenizer(tokenizer, stop=["\\n\\n"])
    text = detokenizer.push([262, 3575]) + detokenizer.flush()
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from serving.errors import InvalidRequestError
from serving.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Deltas joined are `tokenizer.decode` of all tokens, cut before the stop string.

    Where several stop strings occur, the one that is complete first ends the text, the longest of
    them if several are complete at the same character; so the text does not depend on how many
    tokens come at a time. To know which token completed it, push one token at a time.

    Args:
        tokenizer: says what bytes a token stands for.
        stop: strings that end the text and are not part of it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise InvalidRequestError("a stop string is empty, which would end every text; remove it")
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(string) for string in stop]
        self._held = ""  # text that may turn out to be the start of a stop string
        self._stopped_by: str | None = None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text."""
        return self._stopped_by

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that can be shown after these tokens; "" once a stop string ended it."""
        data = b"".join(map(self._tokenizer.token_bytes, token_ids))
        return self._show(self._utf8.decode(data))

    def flush(self) -> str:
        """What is still held back, when no more tokens come."""
        text = self._show(self._utf8.decode(b"", final=True))
        if self._stopped_by is not None:
            return text
        text, self._held = text + self._held, ""
        return text

    def _show(self, new: str) -> str:
        if self._stopped_by is not None:
            return ""
        if not self._matchers:
            return new
        text = self._held + new
        for index, char in enumerate(new, start=len(self._held) + 1):
            complete = [m.string for m in self._matchers if m.push(char)]
            if complete:
                self._stopped_by = max(complete, key=len)
                self._held = ""
                return text[: index - len(self._stopped_by)]
        shown = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[shown:]
        return text[:shown]


class _StopMatcher:
    """Knuth, Morris and Pratt's automaton for one string: constant time a character, amortised."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0  # length of the longest end of the text that begins the string
        self._fallback = [0]  # for each length matched: the next shorter one that also fits
        for char in string[1:]:
            self._fallback.append(self._extend(self._fallback[-1], char))

    def push(self, char: str) -> bool:
        """Advance by a character; True when the string is complete."""
        self.matched = self._extend(self.matched, char)
        return self.matched == len(self.string)

    def _extend(self, length: int, char: str) -> int:
        while length and self.string[length] != char:
            length = self._fallback[length - 1]
        return length + 1 if self.string[length] == char else 0
