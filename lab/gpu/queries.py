"""Asks engines the benchmark's questions, each engine in its own process, and counts valid and equal answers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from typing import Final

from lab.bench.asker import Asker
from lab.bench.lineup import Lineup
from lab.bench.peers import Peer, WeightForms
from lab.bench.protocol import Batch
from lab.bench.questions import measured_questions
from lab.gpu.gpu_report import StageReport
from lab.gpu.place import Place
from pipeline.paths import ROOT
from pipeline.weights.default_weights import weights_or_default

_MAX_TOKENS: Final = 256
_BUILD: Final = ROOT / "build"
_VLLM: Final = {"engine": "vllm", "max_model_len": 4096, "gpu_memory_utilization": 0.5}


def queries(place: Place, report: StageReport) -> None:
    """Times, passes, and whether the answers are valid; how many are those of the CPU's kernels is no verdict."""
    devices = ("cuda", "cpu") if place.has_gpu else ("cpu",)
    report.where = "the paged engine on each device that is named"
    peers = [
        Peer(f"paged, {each}", "dev", settings={"engine": "paged", "device": each}, is_fresh=True) for each in devices
    ]
    _ask(report, peers, 40 if place.has_gpu else 2)
    if not place.has_gpu:
        report.not_run.append("queries on a GPU: there is none")


def beside_vllm(place: Place, report: StageReport) -> None:
    """The same questions to our engine, to vLLM alone, and to vLLM with our drafts."""
    if not place.has_gpu:
        report.not_run.append("vLLM on a GPU: there is none; scripts/dev/bench has vLLM's CPU build")
        return
    names = {"off": "vLLM", "auto": "vLLM with our drafts"}
    vllm = [Peer(name, "image", settings={**_VLLM, "speculation": each}, is_fresh=True) for each, name in names.items()]
    _ask(report, [Peer("paged", "dev", settings={"engine": "paged", "device": "cuda"}, is_fresh=True), *vllm], 40)


def _ask(report: StageReport, peers: list[Peer], count: int) -> None:
    """Start the engines one after the other and ask each the same questions, with columns that it has not seen."""
    weights: Path = weights_or_default(None)
    asker = Asker(weights)
    source = measured_questions(weights, asker, None)
    questions, first = source.draw(count, "gpu_check"), list[str]()
    forms = WeightForms(weights, unquantized=None, cache=_BUILD / "bench")
    for peer in peers:  # a lineup each, because engines on one GPU would share its memory
        logs = _BUILD / "gpu_check/logs"
        with closing(Lineup([peer], forms, asker, source.warm_up, logs, lambda message: None)) as lineup:
            lineup.prepare()
            done = lineup.measure(peer, [Batch(asker.asks(questions, _MAX_TOKENS), 1)])
            error = lineup.entries[peer.name].error
        if error is not None:  # without vLLM's environment there is nothing to compare
            (report.not_run if error.startswith("the environment") else report.wrong).append(f"{peer.name}: {error}")
            continue
        replies = list(done.replies) if done is not None else []
        valid = [
            asker.meaning(question, reply) is not None for question, reply in zip(questions, replies, strict=False)
        ]
        texts = [reply.text for reply in replies]
        report.add(peer.name, "an answer, median", 1000 * median(reply.e2e for reply in replies), "ms")
        report.add(peer.name, "first token", 1000 * median(reply.ttft or reply.e2e for reply in replies), "ms")
        report.add(peer.name, "passes of an answer", fmean(reply.passes for reply in replies))
        report.add(peer.name, "answers that are not valid", count - sum(valid), limit=0.0)
        first = first or texts
        report.add(peer.name, "answers that are those of the first", sum(map(str.__eq__, texts, first)))
