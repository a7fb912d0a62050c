"""Golden prompts: what an adapter's merged model answers, which the adapter on its base has to answer too.

They are in the adapter's folder, in golden.jsonl. `scripts/dev/make_golden` writes lines of
{"prompt": [token ids], "answer": [token ids], "ends": true, "text": "the answer, for readers"}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serving.errors import WeightsError
from serving.weights.adapter_files import GOLDEN

MAX_PROMPTS: Final = 16
MAX_PROMPT_TOKENS: Final = 2048
MAX_ANSWER_TOKENS: Final = 128
_MAX_BYTES: Final = 1 << 20
_REMEDY: Final = (
    "if the adapter was trained on this base, the base's quantization changes its answers: merge it and quantize the "
    "result (scripts/merge_lora), or make other golden prompts (scripts/dev/make_golden); ADAPTER_GOLDEN=false accepts "
    "it"
)


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """A prompt, and its greedy answer without a grammar.

    Args:
        prompt: token ids, with those that the task's prompt begins with.
        answer: token ids without the end token.
        ends: whether the end token comes next; otherwise the answer was cut there.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ends: bool

    @property
    def max_tokens(self) -> int:
        """The limit of the answer's tokens that shows whether the end token comes where it should."""
        return len(self.answer) + self.ends

    def to_line(self, text: str) -> str:
        """The prompt and its answer as a line of the file, with the answer's text."""
        fields = {"prompt": self.prompt, "answer": self.answer, "ends": self.ends, "text": text}
        return json.dumps(fields, ensure_ascii=False) + "\n"


def read_golden(folder: Path) -> tuple[GoldenPrompt, ...]:
    """The golden prompts of an adapter; none if its folder has none.

    Raises:
        WeightsError: the file is too large, or a line has another form.
    """
    path = folder / GOLDEN
    if not path.is_file():
        return ()
    if path.stat().st_size > _MAX_BYTES:
        raise WeightsError(f"{path} has over {_MAX_BYTES:,} bytes; keep fewer golden prompts")
    lines = path.read_bytes().splitlines()
    if not 0 < len(lines) <= MAX_PROMPTS:
        raise WeightsError(f"{path} has {len(lines)} lines; keep 1 to {MAX_PROMPTS} golden prompts")
    return tuple(_read(path, number, line) for number, line in enumerate(lines, start=1))


def check_answer(number: int, golden: GoldenPrompt, answer: tuple[int, ...], *, ended: bool) -> None:
    """Compare an answer, generated greedily with `golden.max_tokens`, with the merged model's.

    Args:
        number: the number of the prompt, from 1.
        golden: the prompt.
        answer: token ids without the end token; `ended` is whether it came.

    Raises:
        WeightsError: they differ.
    """
    if (answer, ended) == (golden.answer, golden.ends):
        return
    pairs = zip(answer, golden.answer, strict=False)
    same = next((i for i, (ours, its) in enumerate(pairs) if ours != its), min(len(answer), len(golden.answer)))
    raise WeightsError(
        f"{GOLDEN}, line {number}: on this base it differs from its merged model at token {same + 1} of "
        f"{golden.max_tokens}; {_REMEDY}"
    )


def _read(path: Path, number: int, line: bytes) -> GoldenPrompt:
    try:
        value = json.loads(line)
        prompt, answer = (_tokens(value[name]) for name in ("prompt", "answer"))
        golden = GoldenPrompt(prompt, answer, value["ends"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path}, line {number}: not as scripts/dev/make_golden writes it; make it again") from error
    within = 0 < len(prompt) <= MAX_PROMPT_TOKENS and len(answer) <= MAX_ANSWER_TOKENS
    if type(golden.ends) is not bool or not within or not golden.max_tokens:
        raise WeightsError(
            f"{path}, line {number}: {len(prompt):,} tokens of a prompt and {len(answer):,} of an answer; give 1 to "
            f"{MAX_PROMPT_TOKENS:,} and up to {MAX_ANSWER_TOKENS}"
        )
    return golden


def _tokens(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise TypeError("not a list of token ids")
    return tuple(value)
