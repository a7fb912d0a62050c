"""What is asked: committed requests of twenty teams, as prompts.

Owns: the file of requests, the shuffling that makes a column list new, prompts and grammars. Knows
nothing of engines: prompt and grammar are the same for all, each grammar in the engine's own dialect.

    asks = Asker(weights).asks(draw(read_teams(), 20, "round 1"), Dialect.LARK, max_tokens=256)
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from honeycomb.grammar import build_grammar
from honeycomb.profile import Profile
from honeycomb.prompt import build_prompt, check_nlq
from scripts.benchmark.gbnf import build_gbnf
from scripts.benchmark.protocol import Ask
from serving.text import Tokenizer

REQUESTS = Path(__file__).with_name("requests.jsonl")


class Dialect(StrEnum):
    """How an engine is told what answers may look like."""

    LARK = "lark"  # llguidance's: ours and vLLM's
    GBNF = "gbnf"  # llama.cpp's
    NONE = "none"  # plain transformers


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a team's columns."""

    nlq: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Team:
    """Columns, and what their owners ask."""

    columns: tuple[str, ...]
    questions: tuple[str, ...]

    def question(self, number: int, rng: random.Random) -> Question:
        """One of the questions, the columns in a new order: no cache has seen that prompt."""
        columns = list(self.columns)
        rng.shuffle(columns)
        return Question(self.questions[number % len(self.questions)], tuple(columns))


def read_teams(path: Path = REQUESTS) -> list[Team]:
    """One JSON object a line: {cols, questions}, or {cols, nlq} as the training data has it."""
    teams = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        teams.append(Team(tuple(record["cols"]), tuple(record.get("questions") or [record["nlq"]])))
    return teams


class Asker:
    """Turns questions into requests for one checkpoint.

    Args:
        weights: folder with profile.json and the tokenizer.
    """

    def __init__(self, weights: Path) -> None:
        self._profile = Profile.load(weights / "profile.json")
        self._tokenizer = Tokenizer.from_dir(weights)

    def ask(self, key: str, question: Question, dialect: Dialect, max_tokens: int) -> Ask:
        """The request for one question."""
        prompt = build_prompt(check_nlq(question.nlq), question.columns, self._profile.prompt)
        ids = tuple(self._tokenizer.encode(prompt))
        return Ask(key, ids, max_tokens, self._grammar(question.columns, dialect))

    def asks(self, questions: Sequence[Question], dialect: Dialect, max_tokens: int) -> tuple[Ask, ...]:
        """A request for each, its place in the list for a key."""
        return tuple(self.ask(str(i), q, dialect, max_tokens) for i, q in enumerate(questions))

    def free(self, key: str, text: str, max_tokens: int) -> Ask:
        """A text to be continued, without a grammar."""
        return Ask(key, tuple(self._tokenizer.encode(text)), max_tokens)

    def _grammar(self, columns: Sequence[str], dialect: Dialect) -> str | None:
        if dialect is Dialect.LARK:
            return build_grammar(columns, self._profile.surface)
        return build_gbnf(columns, self._profile.surface) if dialect is Dialect.GBNF else None


def draw(teams: Sequence[Team], count: int, seed: str, question: int = 0) -> list[Question]:
    """`count` questions of different teams, columns shuffled; all of one seed are the same for everyone.

    Once every team has asked, each asks its next question.
    """
    rng = random.Random(seed)
    return [teams[i % len(teams)].question(question + i // len(teams), rng) for i in range(count)]


def at_rate(asks: Sequence[Ask], rate: float, seed: str) -> tuple[Ask, ...]:
    """The same requests, arriving as those of many independent users: Poisson, so many a second."""
    rng = random.Random(seed)
    now, arriving = 0.0, []
    for ask in asks:
        now += rng.expovariate(rate)
        arriving.append(replace(ask, at=now))
    return tuple(arriving)
