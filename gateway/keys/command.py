"""The command line of scripts/keys, which creates, lists and revokes keys."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.keys.key_file import KeyFile, KeyNameError
from gateway.settings import GatewaySettings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="API keys of the gateway (GATEWAY_KEYS=required).")
_errors = Console(stderr=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="of the caller")],
    rate: Annotated[str | None, typer.Option(help="predictions a minute, such as 60/min; default: no limit")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="predictions at the same time")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="may see all corrections and accept them")] = False,
) -> None:
    """Make a key and show it, this once."""
    per_minute = None if rate is None else _per_minute(rate)
    with closing(_open()) as file:
        try:
            key = file.create(name, per_minute=per_minute, concurrent=concurrent, is_admin=admin)
        except KeyNameError as error:
            _fail(error)
    _errors.print(f"The key of {name}; it cannot be shown again:")
    print(key)


@app.command("list")
def list_keys() -> None:
    """Show all keys without their secrets."""
    table = Table("name", "key", "a minute", "at once", "admin", "created", "revoked")
    with closing(_open()) as file:
        for key in file.all():
            rate = "" if key.per_minute is None else f"{key.per_minute:g}"
            limit = "" if key.concurrent is None else str(key.concurrent)
            times = key.created_at[:19], (key.revoked_at or "")[:19]
            table.add_row(key.name, f"dk_{key.id}_…", rate, limit, "yes" if key.is_admin else "", *times)
    Console(width=None if _errors.is_terminal else 120).print(table)


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="of the caller")]) -> None:
    """Refuse a key from now on."""
    with closing(_open()) as file:
        try:
            file.revoke(name)
        except KeyNameError as error:
            _fail(error)


def _open() -> KeyFile:
    return KeyFile(GatewaySettings().key_file)


def _per_minute(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(?:/min)?", text)
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"--rate {text!r} is not a number of predictions a minute, such as 60/min")
    return float(match[1])


def _fail(error: KeyNameError) -> None:
    _errors.print(str(error), style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1) from error
