"""Measures engines with many adapters on one base, for scripts/dev/bench --workloads adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Column, Table

from lab.bench.adapter_measures import AdapterBench, AdapterPlan, AdapterQuestions, read_questions
from lab.bench.lineup import EngineFailedError
from lab.bench.machine import about_run
from lab.bench.peers import EnvironmentFailedError, Peer, digest
from lab.bench.questions import QuestionError
from pipeline.paths import ROOT
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.merge import merge_folder
from serving.adapters.registry import read_registry

LIST: Final = ROOT / "examples/adapters/adapters.yaml"
BASE: Final = ROOT / "weights/smollm2-135m-instruct"
_NOTE: Final = "its CPU build runs adapters without compilation, and keeps room for as many adapters as users"


def bench_adapters(
    peers: Sequence[Peer],
    base: Path | None,
    adapters: Path | None,
    plan: AdapterPlan,
    say: Callable[[str], None],
    keep: Callable[[Mapping[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure, and return the result; an engine that fails has its error there.

    After Ctrl-C or SIGTERM, the result has the parts that were complete. `keep` is called with the result so far after
    each part. Without a base and a list, those of the example adapters are measured.

    Raises:
        QuestionError: the base or the questions of an adapter are missing.
        ServingError, TaskError: the list or a task is wrong.
    """
    base = base or BASE
    if not (base / "config.json").is_file():
        raise QuestionError(
            f"{base} is missing; scripts/build_base smollm2-135m-instruct {base} --unquantized makes the base of the "
            "example adapters"
        )
    questions = read_questions(read_registry(adapters or LIST), base)
    folder = ROOT / "build/bench/adapters"
    merged = _merged(base, questions[0], folder, say)
    result: dict[str, Any] = {
        **about_run(),
        "base": {"folder": base.name, "sha256": digest(base)},
        "plan": asdict(plan),
        "interrupted": False,
        "engines": {},
    }
    try:
        for peer in peers:
            figures = result["engines"][peer.name] = {"note": _NOTE if peer.engine == "vllm" else ""}
            try:
                bench = AdapterBench(peer, base, questions, plan, folder, say)
                bench.measure(merged, figures, lambda: keep(result))
            except (EngineFailedError, EnvironmentFailedError) as error:
                say(f"{peer.name}: {error}")
                figures["error"] = str(error)
    except KeyboardInterrupt:
        result["interrupted"] = True
        say("interrupted; what was measured so far follows")
    return result


def adapter_table(result: Mapping[str, Any]) -> Table:
    """The figures, with a column for each engine; medians of the rounds."""
    engines = {name: _rows(figures) for name, figures in result["engines"].items()}
    headings = (Column(name, justify="right") for name in engines)
    table = Table("", *headings, title="Many adapters on one base")
    for label in dict.fromkeys(label for rows in engines.values() for label in rows):
        table.add_row(label, *(rows.get(label, "") for rows in engines.values()))
    return table


def _rows(figures: Mapping[str, Any]) -> dict[str, str]:
    """A row for each figure; parts that were not measured have none."""
    found = {"failed": figures["error"].splitlines()[0][:60]} if "error" in figures else {}
    rounds = figures.get("rounds", ())
    for kind in rounds[0] if rounds else ():
        rates = [number[kind]["answers_per_s"] for number in rounds if kind in number]  # the last may be incomplete
        label = f"{kind} adapters" if kind.isdigit() else kind
        found[f"answers/s, {label}"] = f"{median(rates):.1f}"
        if kind.isdigit():
            found[f"MB an adapter, {label}"] = f"{rounds[0][kind]['mb_per_adapter']:.1f}"
    if cold := figures.get("cold"):
        found["cold adapter, first answer p95 ms"] = f"{cold['first_answer_p95_ms']:.0f}"
        found["others meanwhile, p95 grows by"] = f"{cold['others_growth']:.0%}"
    if long := figures.get("long"):
        found["long run, answers/s"] = f"{long['answers_per_s']:.1f}"
        found["long run, RSS grows by MB"] = f"{long['rss_growth_mb']:.0f}"
    right = figures.get("right", {})
    return found | {f"right, {name}": f"{number} of {all_}" for name, (number, all_) in right.items()}


def _merged(base: Path, first: AdapterQuestions, folder: Path, say: Callable[[str], None]) -> Path | None:
    """The base with the first adapter merged into it; None if the base is quantized."""
    output = folder / "merged" / digest(base)[:12] / first.entry.name
    assert isinstance(first.entry.source, Path), "read_questions refuses others"
    try:
        merge_folder(base, first.entry.source, output)
    except CheckpointError as error:
        say(f"no merged model to compare with: {error}")
        return None
    return output
