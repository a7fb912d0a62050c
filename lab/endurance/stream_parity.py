"""Streams random Unicode texts token by token, and compares what is shown with the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from lab.endurance.random_inputs import unicode_text
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from serving.text import IncrementalDetokenizer, Tokenizer

_REPLACEMENT: Final = "\ufffd"
_LONGEST: Final = 60  # characters


def stream_parity(
    stage: Stage,
    amounts: Amounts,
    streamer: type[IncrementalDetokenizer] = IncrementalDetokenizer,
) -> Result:
    """Turn texts into tokens, which are shown a few at a time, with and without stop strings."""
    rng, tokenizer = random.Random("stream parity"), Tokenizer.from_dir(stage.weights)
    differ: list[str] = []
    replaced: list[str] = []
    stopped: list[str] = []
    for number in range(amounts.texts):
        text = unicode_text(rng, _LONGEST).replace(_REPLACEMENT, "")
        stop = _stop_strings(rng, text) if number % 2 else ()
        whole = _before_stop(tokenizer.decode(tokenizer.encode(text, add_bos=False)), stop)
        shown = _streamed(rng, streamer(tokenizer, stop), tokenizer.encode(text, add_bos=False))
        differ += [repr((text, stop, shown))] if "".join(shown) != whole else []
        replaced += [repr((text, shown))] if any(_REPLACEMENT in part for part in shown) else []
        # A part of a stop string must not be shown before it is known that the rest does not follow.
        stopped += [repr((text, stop, shown))] if any(one in "".join(shown) for one in stop) else []
    return Result(
        checks=(
            Check("texts whose streamed parts are not the whole", len(differ), 0),
            Check("texts with a stray U+FFFD", len(replaced), 0),
            Check("texts with a stop string", len(stopped), 0),
        ),
        about={"texts": amounts.texts},
        losses=(*differ[:2], *replaced[:2], *stopped[:2]),
    )


def _stop_strings(rng: random.Random, text: str) -> tuple[str, ...]:
    """Parts of the text, also overlapping ones, and some that nearly occur."""
    found = []
    for _ in range(rng.randrange(1, 4)):
        begin = rng.randrange(len(text) + 1)
        part = text[begin : begin + rng.randrange(1, 6)] or "a"
        found.append(part + rng.choice(("", "", "\0")))
    return tuple(found)


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that is complete first, and the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [one for one in stop if text[:end].endswith(one)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def _streamed(rng: random.Random, streamer: IncrementalDetokenizer, token_ids: Sequence[int]) -> list[str]:
    """The parts that are shown."""
    parts, place = [], 0
    while place < len(token_ids):
        count = rng.randrange(1, 4)
        parts.append(streamer.push(token_ids[place : place + count]))
        place += count
    return [*parts, streamer.flush()]
