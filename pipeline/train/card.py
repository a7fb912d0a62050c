"""The card of a trained task: what it is good at and what not, on examples that were not learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from pipeline.evaluate.reliability import confidence_of, write_reliability
from pipeline.train.choose import Choice
from pipeline.train.record import RunRecord
from pipeline.weights.atomic import write_text
from tasks.evaluation.json_answers import fields

_WORST: Final = 5
_MAX_FIELDS: Final = 40
_DRAWN_FIELDS: Final = 9
_NOTHING: Final = {"value": 0.0, "low": 0.0, "high": 0.0}  # of a field that a model never gives


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on the test examples; the first three as scripts/evaluate writes them.

    Args:
        after: the checkpoint that is served.
        before: the same before it was quantized; None if it was not.
        untrained: the base, asked in the same way.
        drafts: the record of the draft model; empty if none was kept.
        run: the record of the adapter's training.
    """

    after: dict[str, Any]
    before: dict[str, Any] | None
    untrained: dict[str, Any]
    drafts: dict[str, Any]
    run: RunRecord

    def columns(self) -> dict[str, dict[str, Any]]:
        """What was measured of each model, by its name for people."""
        found = {"base, untrained": self.untrained}
        found |= {} if self.before is None else {"trained, 16 bits": self.before}
        return {**found, "served": self.after}


def write_card(out: Path, choice: Choice, base: str, measured: Measured, *, minutes: float) -> str:
    """Write NAME.card.md, NAME.card.png and what `write_reliability` does beside the checkpoint.

    Returns:
        The text for the terminal: results and next commands.
    """
    after = measured.after
    counts = ", ".join(f"{count:,} for {part}" for part, count in choice.counts.items())
    lines = [
        f"# {out.name}",
        "",
        f"A model for the task `{choice.task}`, trained from {base} in {minutes:.0f} minutes.",
    ]
    lines += [f"Examples: {counts}. The figures are of {after['n']} test examples, which were not learned.", ""]
    lines += [*_measures(measured), "", *_speed(measured), ""]
    picture = out.with_name(f"{out.name}.card.png")
    draw(picture, measured)
    lines += [f"![The loss of the training, and the scores of each model]({picture.name})", ""]
    lines += [*_worst(after), *_fields(after), *write_reliability(out, confidence_of(after))]
    lines += ["## How it was made", "", *(f"- {note}" for note in choice.notes), ""]
    card = out.with_name(f"{out.name}.card.md")
    write_text(card, "\n".join(lines))
    shown = [*_measures(measured), "", *_speed(measured), "", *_worst(after)]
    return "\n".join([*shown, f"More: {card}", "", *_next(out)])


def draw(path: Path, measured: Measured) -> None:
    """Draw the training's loss, and the scores of each model with their 95 % intervals."""
    figure = Figure(figsize=(11, 4.5), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    measured.run.plot(left)
    shares = {path: share["value"] for path, share in measured.after["f1"].items() if path != "all"}
    weakest = sorted(shares, key=lambda path: shares[path])[:_DRAWN_FIELDS]
    names = ["exact", *weakest]
    for number, (label, found) in enumerate(measured.columns().items()):
        scores = [found["exact"], *(found["f1"].get(path, _NOTHING) for path in weakest)]
        values = [100 * score["value"] for score in scores]
        reach = [[100 * abs(score["value"] - score[end]) for score in scores] for end in ("low", "high")]
        places = [place - 0.2 * number for place in range(len(names), 0, -1)]
        right.errorbar(values, places, xerr=reach, fmt="o", markersize=4, label=label)
    right.set_yticks(range(len(names), 0, -1), [short(name, 30) for name in names])
    right.set(xlim=(-2, 102), xlabel="exact answers, and F1 of the weakest fields, %")
    right.grid(alpha=0.3)
    right.legend(fontsize="small")
    figure.savefig(path)


def _measures(measured: Measured) -> Iterator[str]:
    columns = measured.columns()
    yield "| share of answers (95 % interval) | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for name in ("valid", "exact"):
        yield f"| {name} | " + " | ".join(_share(found[name]) for found in columns.values()) + " |"
    if "all" in measured.after["f1"]:
        yield "| F1 of fields | " + " | ".join(_share(found["f1"]["all"]) for found in columns.values()) + " |"


def _speed(measured: Measured) -> Iterator[str]:
    speed = measured.after["speed"]
    yield (
        f"16 at once: {speed['model_passes']:.1f} passes of the model and {speed['output_tokens']:.0f} tokens an "
        f"answer, half of the answers within {speed['median_seconds']:.2f} s."
    )
    if passes := measured.drafts.get("passes"):
        yield (
            f"One at a time: {passes['new']:.1f} passes an answer with the draft model, {passes['without']:.1f} "
            f"without ({passes['inputs']} inputs)."
        )
    else:
        yield "It has no draft model."


def _worst(found: dict[str, Any]) -> Iterator[str]:
    """The fields with the lowest F1, each with an answer where it is wrong; of texts, some wrong answers."""
    wrong = [failure for failure in found["failures"] if failure["answer"]]
    shares = {path: share for path, share in found["f1"].items() if path != "all" and share["value"] < 1}
    if shares:
        yield f"## The weakest of {len(found['f1']) - 1} fields"
        yield ""
        for path in sorted(shares, key=lambda path: shares[path]["value"])[:_WORST]:
            example = next((text for failure in wrong if (text := _example(failure, path))), "")
            yield f"- `{path}`: F1 {_share(shares[path])}{example}"
        yield ""
    elif wrong:
        yield "## Some wrong answers"
        yield ""
        for failure in wrong[:_WORST]:
            yield f"- {short(failure['question'])} → {short(failure['answer'])}, not {short(failure['reference'])}"
        yield ""


def _example(failure: dict[str, Any], path: str) -> str:
    try:
        wanted, given = (_values(json.loads(failure[name]), path) for name in ("reference", "answer"))
    except ValueError:
        return ""
    if wanted == given:
        return ""
    return f"; for instance {given or 'nothing'} instead of {wanted or 'nothing'} in {short(failure['question'])}"


def _values(value: Any, path: str) -> str:
    return short(", ".join(sorted(leaf for place, leaf in fields(value).elements() if place == path)))


def _fields(found: dict[str, Any]) -> Iterator[str]:
    shares = [(path, share) for path, share in found["f1"].items() if path != "all"][:_MAX_FIELDS]
    if shares:
        yield "## F1 by field"
        yield ""
        yield "| field | F1 (95 % interval) |"
        yield "|---|---|"
        yield from (f"| `{path}` | {_share(share)} |" for path, share in shares)
        yield ""


def _share(share: dict[str, float]) -> str:
    value, low, high = (100 * share[name] for name in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.0f}–{high:.0f})"


def short(text: str, limit: int = 80) -> str:
    """A text in one line, cut where it has more characters than the limit."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _next(out: Path) -> Iterator[str]:
    yield "Next:"
    yield f"  scripts/use_weights {out.name}             then scripts/predict and scripts/serve answer with it"
    yield f"  scripts/new_package ../{out.name} --weights {out}"
    yield f"  scripts/push hf://ORG/{out.name} --weights {out}"
