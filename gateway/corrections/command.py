"""The command line of scripts/corrections, which lists, adds, decides, exchanges and removes corrections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import pydantic_core
import typer
from pydantic import JsonValue
from rich.console import Console
from rich.table import Column, Table

from gateway.corrections.correction import Correction, Kind, State
from gateway.corrections.correction_file import CorrectionFile
from gateway.corrections.lines import CorrectionLine, LineError, line_of, read_lines
from gateway.predictions.prediction import now
from gateway.settings import GatewaySettings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Corrections of the gateway's answers.")
_errors = Console(stderr=True)
_SHOWN = 40  # characters of a text in the list
KindOption = Annotated[Kind | None, typer.Option(help="only these; default: all")]
StateOption = Annotated[State | None, typer.Option(help="only these; default: all")]


@app.command("list")
def list_corrections(kind: KindOption = None, state: StateOption = None) -> None:
    """Show corrections, oldest first."""
    table = Table(Column("id", no_wrap=True), "kind", "state", "input", "given", "wanted", "by", "note")
    with _open() as file:
        for one in file.all(kind=kind, state=state):
            inputs = " | ".join(str(value) for value in one.input.values())
            texts = (_short(text) for text in (inputs, one.given or "", one.wanted or "", one.owner or "", one.note))
            table.add_row(one.id, one.kind, one.state, *texts)
    Console(width=None if _errors.is_terminal else 240, markup=False).print(table)


@app.command()
def add(
    inputs: Annotated[str, typer.Option("--input", help="the inputs as a JSON object")],
    output: Annotated[str | None, typer.Option(help="the right answer; none for a report")] = None,
    given: Annotated[str | None, typer.Option(help="the answer that the model gave")] = None,
    note: Annotated[str, typer.Option(help="why")] = "",
    kind: Annotated[Kind, typer.Option()] = Kind.CORRECTION,
    state: Annotated[State, typer.Option()] = State.ACCEPTED,
) -> None:
    """Add one. No model is asked whether the answer is one of its task; the playground asks."""
    parsed = _parse(inputs)
    line = CorrectionLine(input=parsed, output=output, given=given, note=note, kind=kind, state=state)
    try:
        correction = line.correction()
    except ValueError as error:
        _fail(str(error))
    with _open() as file:
        file.add(correction)
    print(correction.id)


@app.command("import")
def import_lines(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help='JSONL of {"input", "output", "given", "note", "kind", "state"}')],
    state: Annotated[State | None, typer.Option(help="of all; default: that of each line, else proposed")] = None,
) -> None:
    """Add those of a file, all or none; what is there already, with the same input and answer, is left out."""
    try:
        with (context.obj / path if context.obj else path).open(encoding="utf-8") as lines:
            found = list(read_lines(lines, state=state))
    except OSError as error:
        _fail(f"{path} cannot be read: {error.strerror}")
    except (LineError, UnicodeDecodeError) as error:
        _fail(f"{path}: {error}")
    with _open() as file:
        new = list(_without(found, file.all()))
        file.add_all(new)
    _errors.print(f"{len(new)} added, {len(found) - len(new)} were there already")


@app.command()
def export(
    kind: KindOption = None,
    state: Annotated[State, typer.Option(help="only these")] = State.ACCEPTED,
) -> None:
    """Print corrections as JSONL; by default the accepted ones that have an answer: corrections and examples."""
    with _open() as file:
        for one in file.all(kind=kind, state=state):
            if one.wanted is not None or kind is Kind.REPORT:
                print(line_of(one))


@app.command()
def accept(ids: Annotated[list[str], typer.Argument(help="as list shows them")]) -> None:
    """Accept corrections that were proposed or rejected, all or none; scripts/improve learns from accepted ones."""
    with _open() as file:
        found = {one: file.get(one) for one in ids}
        _check_missing([one for one, correction in found.items() if correction is None])
        for correction in found.values():
            assert correction is not None
            file.change(replace(correction, state=State.ACCEPTED, decided_at=now()))


@app.command()
def remove(ids: Annotated[list[str], typer.Argument(help="as list shows them")]) -> None:
    """Delete corrections for ever."""
    with _open() as file:
        _check_missing([one for one in ids if not file.remove(one)])


@contextmanager
def _open() -> Iterator[CorrectionFile]:
    with closing(CorrectionFile(GatewaySettings().correction_file)) as file:
        yield file


def _check_missing(ids: Sequence[str]) -> None:
    if ids:
        _fail(f"there is no correction {', '.join(ids)}; scripts/corrections list shows all")


def _without(corrections: Iterable[Correction], known: Iterable[Correction]) -> Iterator[Correction]:
    """The corrections that differ from all known ones and from each other."""
    seen = {_content(one) for one in known}
    for one in corrections:
        if (content := _content(one)) not in seen:
            seen.add(content)
            yield one


def _content(one: Correction) -> tuple[str, str, str | None]:
    return one.kind, pydantic_core.to_json(dict(sorted(one.input.items()))).decode(), one.wanted


def _parse(text: str) -> dict[str, JsonValue]:
    try:
        value = pydantic_core.from_json(text)
    except ValueError as error:
        _fail(f'--input is not JSON: {error}; give an object such as {{"text": "…"}}')
    if not isinstance(value, dict):
        _fail('--input is not an object such as {"text": "…"}')
    return value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def _fail(message: str) -> NoReturn:
    _errors.print(message, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1)
