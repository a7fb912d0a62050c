"""Convert generated token ids to text incrementally, and end it at stop strings.

detokenizer = IncrementalDetokenizer(tokenizer, stop=["\\n\\n"])
text = detokenizer.push([262, 3575]) + detokenizer.flush()
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from serving.errors import InvalidRequestError
from serving.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The concatenated deltas are `tokenizer.decode` of all tokens, cut off before the first stop string.

    A delta never ends inside a character and never contains a part of a stop string. If several stop strings occur, the
    one that is complete first ends the text; if several are complete at the same character, the longest does. The text
    therefore does not depend on how many tokens are pushed at a time.

    Raises:
        InvalidRequestError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise InvalidRequestError("a stop string is empty, which would end every text; remove it")
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(string) for string in stop]
        self._held = ""  # text that may turn out to be the start of a stop string
        self.stopped_by: str | None = None  # the stop string that ended the text

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; return the text that is now final. Returns "" after a stop string."""
        data = b"".join(map(self._tokenizer.token_bytes, token_ids))
        return self._show(self._utf8.decode(data))

    def push_to_stop(self, token_ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Add tokens; return the text that is now final, and the tokens up to the one that completes a stop string."""
        if not self._matchers:
            return self.push(token_ids), tuple(token_ids)
        text = ""
        for count, token_id in enumerate(token_ids, start=1):
            text += self.push([token_id])
            if self.stopped_by is not None:
                return text, tuple(token_ids[:count])
        return text, tuple(token_ids)

    def flush(self) -> str:
        """Return the text that was still held back. Call this after the last token."""
        text = self._show(self._utf8.decode(b"", final=True))
        if self.stopped_by is not None:
            return text
        text, self._held = text + self._held, ""
        return text

    def _show(self, new: str) -> str:
        if self.stopped_by is not None:
            return ""
        if not self._matchers:
            return new
        text = self._held + new
        for index, char in enumerate(new, start=len(self._held) + 1):
            complete = [m.string for m in self._matchers if m.push(char)]
            if complete:
                self.stopped_by = max(complete, key=len)
                self._held = ""
                return text[: index - len(self.stopped_by)]
        shown = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[shown:]
        return text[:shown]


class _StopMatcher:
    """The Knuth-Morris-Pratt automaton for one string: amortized constant time per character."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0  # length of the longest suffix of the text that is a prefix of the string
        self._fallback = [0]  # for each matched length, the next shorter one that also matches
        for char in string[1:]:
            self._fallback.append(self._extend(self._fallback[-1], char))

    def push(self, char: str) -> bool:
        """Advance by a character; return whether the string is complete."""
        self.matched = self._extend(self.matched, char)
        return self.matched == len(self.string)

    def _extend(self, length: int, char: str) -> int:
        while length and self.string[length] != char:
            length = self._fallback[length - 1]
        return length + 1 if self.string[length] == char else 0
