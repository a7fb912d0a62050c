"""Answers one row in the same way as predict; any runner can use it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.package.command_inputs import BadInputError
from serving.errors import EngineDeadError, ServingError
from serving.model import ADAPTER, Model
from tasks.errors import TaskError
from tasks.task import Prompt


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A row whose prompt is known; or `problem` says why it has none. A prompt can be answered only once."""

    row: Row
    prompt: Prompt | None
    adapter: str | None = None
    problem: str | None = None

    @property
    def order(self) -> tuple[str, tuple[int, ...]]:
        """Key by which rows with equal beginnings of prompts come one after another."""
        return self.adapter or "", () if self.prompt is None else self.prompt.token_ids


def prepare_row(model: Model, inputs: RowInputs, row: Row) -> PreparedRow:
    """Check a row's inputs and make its prompt."""
    if row.problem is not None:
        return PreparedRow(row, None, problem=row.problem)
    try:
        given = inputs.of(row)
        return PreparedRow(row, model.prepare(given), given.get(ADAPTER) or None)
    except BadInputError as error:
        return PreparedRow(row, None, problem=str(error))
    except Exception as error:  # whatever is wrong with one row must not stop the others
        return PreparedRow(row, None, problem=_reason(error))


async def answer_row(model: Model, prepared: PreparedRow) -> RowAnswer:
    """The answer of a row, or the reason why there is none.

    Raises:
        EngineDeadError: the engine failed, which is perhaps not the row's fault.
    """
    number = prepared.row.number
    if prepared.prompt is None:
        return RowAnswer(number, None, prepared.problem)
    answer, error = model.answer_prompt(prepared.prompt, prepared.adapter), None
    try:
        await answer
    except EngineDeadError:
        raise
    except Exception as problem:
        error = _reason(problem)
    tokens = (int(answer.metrics.get(name, 0)) for name in ("input_token_count", "output_token_count"))
    return RowAnswer(number, answer.text if error is None else None, error, *tokens)


def _reason(error: Exception) -> str:
    if isinstance(error, ServingError | TaskError):
        return str(error)
    return f"internal error: {error!r}"
