"""The questions for the Honeycomb task: committed ones of twenty teams, with column lists in random order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.questions import Question, QuestionError

REQUESTS = Path(__file__).with_name("requests.jsonl")


@dataclass(frozen=True, slots=True)
class Team:
    """The columns of a team and its questions."""

    columns: tuple[str, ...]
    questions: tuple[str, ...]


class HoneycombQuestions:
    """See `Questions`. A new order of columns makes a prompt that no cache has seen.

    Args:
        teams: the sources of questions.
    """

    warm_up = (
        Question({"nlq": "count of everything", "cols": '["left", "right"]'}),
        Question({"nlq": "newest", "cols": '["up", "down", "strange"]'}),
    )

    def __init__(self, teams: Sequence[Team]) -> None:
        self._teams = teams

    def __len__(self) -> int:
        return len(self._teams)

    def draw(self, count: int, seed: str, number: int = 0) -> list[Question]:
        """Questions of different teams, with shuffled columns; after all teams, each asks its next question."""
        rng = random.Random(seed)
        found = []
        for i in range(count):
            team = self._teams[i % len(self._teams)]
            columns = list(team.columns)
            rng.shuffle(columns)
            place = (number + i // len(self._teams)) % len(team.questions)
            found.append(_question(team.questions[place], columns))
        return found

    def before(self, questions: Sequence[Question], number: int) -> list[Question]:
        """Another question of the team with the same columns in the same order."""
        earlier = []
        for i, question in enumerate(questions):
            asked = self._teams[i % len(self._teams)].questions
            earlier.append(Question({**question.inputs, "nlq": asked[(number + 1) % len(asked)]}))
        return earlier


def read_teams(path: Path = REQUESTS) -> list[Team]:
    """Read a file with one JSON object on each line: {cols, questions}, or {cols, nlq} as in the training data.

    Raises:
        QuestionError: a line has another form.
    """
    teams = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            teams.append(Team(tuple(record["cols"]), tuple(record.get("questions") or [record["nlq"]])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuestionError(
                f"{path}:{number}: a line is {{cols, questions}} or {{cols, nlq}} ({error!r})"
            ) from error
    return teams


def _question(nlq: str, columns: Sequence[str]) -> Question:
    return Question({"nlq": nlq, "cols": json.dumps(columns)})
