"""Write `conventions.tsv` from the wheels of two packages of attribute conventions, without importing them.

python -m examples.honeycomb.datagen.people.extract_conventions OTEL.whl SENTRY.whl

Used when the table is renewed, never when data is made. Each line is: source, name, type, example values separated by
"|", and the first words of the description.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

TABLE = Path(__file__).parent / "conventions.tsv"
_SENTRY_TYPES = {"STRING": "string", "INTEGER": "int", "DOUBLE": "double", "BOOLEAN": "boolean"}
_DESCRIPTION_WORDS = 12
_MAX_EXAMPLE = 60
Row = tuple[str, str, str, str]


def otel_rows(wheel: Path) -> Iterator[Row]:
    """Attributes of `opentelemetry-semantic-conventions`: constants, each followed by its description."""
    for tree in _modules(wheel, "/_incubating/attributes/"):
        enums = {node.name: _members(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        for node, after in zip(tree.body, tree.body[1:], strict=False):
            match node, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=constant), value=ast.Constant(value=str(name))),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    values = enums.get(f"{constant.title().replace('_', '')}Values", [])
                    kind = "enum" if values else ""
                    if "eprecated" not in text and not name.endswith(("_template", ".key")):
                        yield name, kind, "|".join(values), _first_words(text)


def sentry_rows(wheel: Path) -> Iterator[Row]:
    """Attributes of `sentry-conventions`: entries with a type, a brief and an example."""
    for tree in _modules(wheel, "sentry_conventions/attributes.py"):
        for node in ast.walk(tree):
            match node:
                case ast.Dict(keys=keys, values=values) if len(keys) > 1:
                    for key, value in zip(keys, values, strict=True):
                        match key, value:
                            case ast.Constant(value=str(name)), ast.Call(keywords=keywords):
                                yield from _sentry_row(name, {k.arg or "": k.value for k in keywords})


def _sentry_row(name: str, fields: dict[str, ast.expr]) -> Iterator[Row]:
    match fields:
        case {"type": ast.Attribute(attr=kind), "brief": ast.Constant(value=str(brief))} if kind in _SENTRY_TYPES:
            example = fields.get("example")
            value = str(example.value) if isinstance(example, ast.Constant) else ""
            value = "" if len(value) > _MAX_EXAMPLE or re.search(r"[\t\n|]", value) else value
            if "deprecation" not in fields and re.fullmatch(r"[A-Za-z][\w.-]*", name):
                yield name, _SENTRY_TYPES[kind], value, _first_words(brief)


def _modules(wheel: Path, part: str) -> Iterator[ast.Module]:
    with ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if part in name and name.endswith(".py"):
                yield ast.parse(archive.read(name))


def _members(node: ast.ClassDef) -> list[str]:
    found = [a.value.value for a in node.body if isinstance(a, ast.Assign) and isinstance(a.value, ast.Constant)]
    return [str(value) for value in found if len(str(value)) <= _MAX_EXAMPLE][:8]


def _first_words(text: str) -> str:
    sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.strip()).split("\n")[0]
    return " ".join(sentence.replace("`", "").split(". ")[0].rstrip(".").split()[:_DESCRIPTION_WORDS])


def write_table(otel: Path, sentry: Path) -> None:
    """Write the table; a name in both packages is written once."""
    rows = {("sentry", *row)[1]: ("sentry", *row) for row in sentry_rows(sentry)}
    for row in otel_rows(otel):
        known = rows.get(row[0])
        kind, values = (row[1] or (known[2] if known else ""), row[2] or (known[3] if known else ""))
        rows[row[0]] = ("otel", row[0], kind, values, row[3])
    TABLE.write_text("".join("\t".join(rows[name]) + "\n" for name in sorted(rows)), encoding="utf-8")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]), Path(sys.argv[2]))
