"""Asks a gateway with other people's packages, in an environment that has them: python ask.py ADDRESS MODEL MODULE.

The model behind the gateway repeats the user's last message, as far as a schema allows it. Each function `row_…` of the
module asks in one way that users of its package ask. Prints a JSON object with what each gave, or the error that its
user sees.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import traceback
from typing import Any

from pydantic import BaseModel


async def _ask(row: Any) -> dict[str, object]:
    try:
        given = await row() if inspect.iscoroutinefunction(row) else await asyncio.to_thread(row)
    except Exception as error:
        sys.stderr.write(traceback.format_exc())
        return {"error": f"{type(error).__name__}: {error}"}
    return {"given": given.model_dump() if isinstance(given, BaseModel) else given}


async def main() -> None:
    """Ask in all ways, one after another."""
    found = vars(importlib.import_module(sys.argv[3]))
    rows = {name.removeprefix("row_"): row for name, row in found.items() if name.startswith("row_")}
    answers = {name: await _ask(row) for name, row in rows.items()}
    sys.stdout.write(f"\n{json.dumps(answers)}")  # packages print lines of their own before it


if __name__ == "__main__":
    asyncio.run(main())
