"""Writes results as one HTML page: measures, categories, and each failure beside its reference, differences marked.

The page has no scripts and loads nothing.
"""

from __future__ import annotations

import difflib
import html
import re
from pathlib import Path
from typing import Any

from pipeline.evaluate.results import category_measure, measures_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto;
  padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.failure { border-top: 1px solid #bbb; padding: .8rem 0 }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem }
.sides div { font: 13px/1.5 ui-monospace, monospace; background: #f6f6f4; padding: .5rem;
  overflow-wrap: anywhere }
del { background: #fbd5d0; text-decoration: none } ins { background: #cdeccf; text-decoration: none }
small { color: #666 }
"""
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.-]+|\s+|.', re.DOTALL)


def write_page(results: dict[str, Any], path: Path) -> None:
    """Write the page of a result file's content."""
    failures = results["failures"]
    body = [
        f"<h1>{_text(results['data']['file'])}: {results['n']} questions</h1>",
        f"<p><small>{_text(results.get('command', ''))}</small></p>",
        _measures(results),
        _categories(results["categories"], category_measure(results)),
        f"<h2>{len(failures)} that are not {category_measure(results)}</h2>",
        *map(_failure, failures),
    ]
    page = f"<!doctype html><meta charset='utf-8'><title>Evaluation</title><style>{_STYLE}</style>"
    path.write_text(page + "\n".join(body), encoding="utf-8")


def _measures(results: dict[str, Any]) -> str:
    shares = {name: results[name] for name in measures_of(results)}
    parts = {f"F1 {part}": share for part, share in results["f1"].items()}
    rows = "".join(_row(name.replace("_", " "), "", share) for name, share in {**shares, **parts}.items())
    return f"<table><tr><th>measure<th><th>value<th>95 % interval</tr>{rows}</table>"


def _categories(categories: dict[str, Any], measure: str) -> str:
    if not categories:
        return ""
    rows = "".join(_row(name, str(c["n"]), c[measure]) for name, c in categories.items())
    head = "<tr><th>category<th>n<th>value<th>95 % interval</tr>"
    return f"<h2>{measure.capitalize()}, by category</h2><table>{head}{rows}</table>"


def _row(name: str, count: str, share: dict[str, float]) -> str:
    low, high = (f"{100 * share[end]:.1f}" for end in ("low", "high"))
    value = f"{100 * share['value']:.1f} %"
    return f"<tr><td>{_text(name)}<td class=n>{count}<td class=n>{value}<td class=n>{low}–{high}</tr>"


def _failure(failure: dict[str, Any]) -> str:
    reference, answer = _marked(failure["reference"], failure["answer"])
    notes = [f"line {failure['line']}", failure["category"] or ""]
    notes.append("the results are the same" if failure.get("execution") else failure["problem"] or "")
    note = " · ".join(_text(n) for n in notes if n)
    return (
        f"<div class=failure><b>{_text(failure['question'])}</b> <small>{note}</small>"
        f"<div class=sides><div>{reference}</div><div>{answer}</div></div></div>"
    )


def _marked(reference: str, answer: str) -> tuple[str, str]:
    """Both texts as HTML, with the differences marked as deleted and inserted."""
    a, b = _WORD.findall(reference), _WORD.findall(answer)
    left, right = [], []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        before, after = _text("".join(a[i:j])), _text("".join(b[k:m]))
        left.append(before if tag == "equal" or not before else f"<del>{before}</del>")
        right.append(after if tag == "equal" or not after else f"<ins>{after}</ins>")
    return "".join(left), "".join(right)


def _text(value: str) -> str:
    return html.escape(value)
