"""Asks paged engines on one checkpoint the same requests, measures their steps, and compares their tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import torch

from lab.gpu.engine_questions import NUM_COMMON, questions
from lab.gpu.gpu_report import StageReport
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationRequest, RequestMetrics

LEVELS: Final = {1: 4, 8: 24, 32: 64}  # requests at once → requests
_WARM_UP: Final = 3  # requests at once before the first level; no level has so many
_WAITS: Final = "head"  # the part of a step that waits for the device
_MAX_MODEL_LEN: Final = 1024

Tokens = tuple[int, ...]
Answers = dict[str, Tokens]  # by request id


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to start the engine: its name for people, and the settings that differ from the others'."""

    name: str
    settings: Mapping[str, Any]


def variants(device: str) -> tuple[Variant, ...]:
    """The engine with and without drafts; on a GPU also without graphs."""
    if device != "cuda":
        return Variant("drafts", {}), Variant("no drafts", {"speculation": "off"})
    # Half of the memory shows whether what the engine leaves free is enough.
    graphs = {"compile": "on", "gpu_memory_utilization": 0.5}
    return (
        Variant("drafts", graphs),
        Variant("no drafts", {**graphs, "speculation": "off"}),
        Variant("no graphs", {**graphs, "compile": "off"}),
    )


def ask(report: StageReport, folder: Path, device: str, variant: Variant, deadline: float) -> Iterator[Answers]:
    """Start an engine, ask it all levels, and close it; levels that have not ended by the deadline are missing.

    The device is the setting DEVICE; the deadline is one of `time.monotonic`.

    Yields:
        The answers so far, after each level.

    Raises:
        ServingError: the engine does not start, or fails.
    """
    begun = time.monotonic()
    settings = Settings(
        engine="paged", weights_dir=folder, device=device, max_model_len=_MAX_MODEL_LEN, **variant.settings
    )
    tokenizer, answers = Tokenizer.from_dir(folder), Answers()
    with closing(create_engine(settings)) as engine:
        report.add("start", "seconds", time.monotonic() - begun)
        report.add("start", "KV blocks", engine.stats().num_blocks)
        for at_once, count in {_WARM_UP: _WARM_UP, **LEVELS}.items():
            before, asked = engine.stats(), time.monotonic()
            try:
                found = asyncio.run(_ask_level(engine, questions(tokenizer, at_once, count), at_once, deadline - asked))
            except TimeoutError:
                report.not_run.append(f"{at_once} at once and more: no time was left")
                break
            if at_once != _WARM_UP:
                answers |= {name: tokens for name, (tokens, _) in found.items()}
                metrics = [one for _, one in found.values()]
                _add_level(report, f"{at_once} at once", metrics, time.monotonic() - asked)
                _add_steps(report, f"{at_once} at once, a step", before, engine.stats())
            yield answers
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            in_use, limit = (total - free) / 2**30, total * settings.gpu_memory_utilization / 2**30
            report.add("memory", "in use", in_use, "GiB", limit=limit)
        yield answers


async def _ask_level(
    engine: Engine, requests: Sequence[GenerationRequest], at_once: int, seconds: float
) -> dict[str, tuple[Tokens, RequestMetrics]]:
    """Each answer's tokens and metrics. As many clients as `at_once` take one request after the other.

    Raises:
        TimeoutError: it takes longer than `seconds`.
    """
    waiting, found = iter(requests), dict[str, tuple[Tokens, RequestMetrics]]()

    async def client() -> None:
        for request in waiting:
            tokens: list[int] = []
            async for delta in engine.generate(request):
                tokens += delta.token_ids
                if delta.metrics is not None:
                    found[request.request_id] = tuple(tokens), delta.metrics

    async with asyncio.timeout(seconds):
        await asyncio.gather(*(client() for _ in range(at_once)))
    return found


def _add_level(report: StageReport, group: str, metrics: Sequence[RequestMetrics], seconds: float) -> None:
    tokens, passes = sum(m.output_token_count for m in metrics), sum(m.model_passes for m in metrics)
    accepted, drafts = sum(m.accepted_token_count for m in metrics), sum(m.draft_token_count for m in metrics)
    first = [m.total_time if m.time_to_first_token is None else m.time_to_first_token for m in metrics]
    report.add(group, "tokens", tokens / seconds, "a second", note=f"{len(metrics)} requests, {tokens} tokens")
    report.add(group, "tokens", tokens / passes, "a pass", note=f"{accepted} of {drafts} drafts accepted")
    report.add(group, "passes", fmean(m.model_passes for m in metrics), "an answer")
    report.add(group, "first token", 1000 * median(first), "ms")
    report.add(group, "answer", 1000 * median(m.total_time for m in metrics), "ms")


def _add_steps(report: StageReport, group: str, before: EngineStats, after: EngineStats) -> None:
    steps = after.num_steps - before.num_steps
    parts = {
        name: 1000 * (seconds - before.step_seconds.get(name, 0.0)) / steps
        for name, seconds in after.step_seconds.items()
    }
    host = sum(ms for name, ms in parts.items() if name != _WAITS)
    report.add(group, "all", sum(parts.values()), "ms", note=f"{steps} steps")
    report.add(group, "host", host, "ms", note=f"all but {_WAITS}, which waits for the device")
    for name, ms in parts.items():
        report.add(group, name, ms, "ms")


def compare(report: StageReport, answers: Mapping[str, Answers]) -> None:
    """Compare the tokens of the first engine with those of the others, and of one question asked at each level.

    None of the answers, by the engine's name, may differ.
    """
    for name, pairs in _pairs(answers):
        different = [request for request, mine, theirs in pairs if mine != theirs]
        report.add(name, "answers that differ", len(different), f"of {len(pairs)}", limit=0)
        if different:
            report.wrong.append(f"{name}: the answers of {', '.join(different)} differ")
        if not pairs:
            report.wrong.append(f"{name}: there are no answers of both")


def _pairs(answers: Mapping[str, Answers]) -> Iterator[tuple[str, list[tuple[str, Tokens, Tokens]]]]:
    """The comparisons by name; of each answer that both sides have, its request and the tokens of both."""
    (first, reference), *others = answers.items()
    for name, tokens in others:
        common = [request for request in reference if request in tokens]
        yield f"{first} = {name}", [(request, reference[request], tokens[request]) for request in common]
    for name, tokens in answers.items():
        lowest, *levels = sorted({int(request.partition("-")[0]) for request in tokens}) or [0]
        for level in levels:
            pairs = [(f"{level}-{i}", tokens[f"{lowest}-{i}"], tokens[f"{level}-{i}"]) for i in range(NUM_COMMON)]
            yield f"{name}, {lowest} at once = {level} at once", pairs
