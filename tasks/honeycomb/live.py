"""Stream an answer while it is being generated.

JSON is streamed up to the first clause that may still change at the end: clauses that refer to others, and times. The
rest follows in one piece and in canonical form. The whole stream is therefore one valid query, and exactly the
canonical text if the model has written canonically so far.

    live = QueryReader(["name"], "json")
    live.push('{"calculations": [{"op": "COUNT"}], "ord')  ->  '{"calculations": [{"op": "COUNT"}]'
    live.push('ers": [{"op": "COUNT"}]}')                  ->  ''
    live.finish(FinishReason.STOP)  ->  ', "orders": [{"op": "COUNT", "order": "ascending"}]}'
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from serving.types import FinishReason
from tasks.honeycomb.options import Surface
from tasks.honeycomb.query import read_answer

SHOWN_AT_ONCE: Final = frozenset({"breakdowns", "calculations", "filters", "filter_combination"})


class QueryReader:
    """See `tasks.task.Reader`; the notes are the corrections that `finish` made.

    Args:
        columns: the names that the query may use.
        surface: the form in which the model writes. Nothing of a Python literal can be shown before its end.
    """

    def __init__(self, columns: Sequence[str], surface: Surface) -> None:
        self.notes: tuple[str, ...] = ()
        self._columns = columns
        self._text = ""
        self._shown = 0
        self._shown_keys: list[str] = []
        self._ended = surface != "json"  # nothing more is shown before the end
        self._position = 0  # where the scanner is
        self._depth = 0
        self._string_start: int | None = None
        self._escaped = False
        # Start of the entry whose key is not known yet, including its comma; it is not shown so far.
        self._entry_start: int | None = 0

    def push(self, delta: str) -> str:
        """See `Reader.push`."""
        self._text += delta if self._text else delta.lstrip()
        while not self._ended and self._position < len(self._text):
            self._scan(self._text[self._position])
            self._position += 1
        safe = self._position if self._entry_start is None else self._entry_start
        shown, self._shown = self._text[self._shown : safe], safe
        return shown

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`; the whole answer is corrected too."""
        answer = read_answer(self._text, self._columns)
        self.notes = tuple(f"repaired: {repair}" for repair in answer.repairs)
        if not self._shown:
            return answer.text
        rest = {key: value for key, value in json.loads(answer.text).items() if key not in self._shown_keys}
        tail = json.dumps(rest, ensure_ascii=False)[1:]
        return f", {tail}" if rest and self._shown_keys else tail

    def _scan(self, character: str) -> None:
        """Track strings and brackets to find the keys of the outermost object."""
        if self._string_start is not None:
            self._scan_string(character)
        elif character == '"':
            self._string_start = self._position
        elif character in "{[":
            self._depth += 1
            if self._depth == 1:
                self._ended = character == "["
                self._entry_start = 0 if self._ended else self._position + 1
        elif character in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._hold()
        elif character == "," and self._depth == 1:
            self._entry_start = self._position
        elif self._depth == 0:
            self._ended = True

    def _scan_string(self, character: str) -> None:
        if self._escaped or character == "\\":
            self._escaped = not self._escaped
        elif character == '"':
            if self._depth == 1 and self._entry_start is not None:
                self._take_key(self._text[(self._string_start or 0) + 1 : self._position])
            self._string_start = None

    def _take_key(self, key: str) -> None:
        if key in SHOWN_AT_ONCE:
            self._shown_keys.append(key)
            self._entry_start = None
        else:
            self._ended = True

    def _hold(self) -> None:
        """Hold back the closing brace of the object, because text may have to be inserted before it."""
        self._entry_start = self._position
        self._ended = True
