"""The model's queries end to end with our engine, and beside vLLM with and without our drafts."""

from __future__ import annotations

from typing import Final

from pipeline.benchmark.peers import Peer
from pipeline.gpu_check.asked import Answers, ask
from pipeline.gpu_check.finding import NO_GPU, Figure, Finding
from pipeline.gpu_check.place import Place

_COUNT: Final = 40
_QUICK: Final = 2
_VLLM: Final = {"engine": "vllm", "max_model_len": 4096, "gpu_memory_utilization": 0.5}


def _paged(name: str, device: str) -> Peer:
    return Peer(name, "dev", settings={"engine": "paged", "device": device}, is_fresh=True)


def queries(place: Place) -> Finding:
    """Times, passes, and whether the answers are valid; how many are those of the CPU's kernels is no verdict."""
    peers = [_paged("paged, CPU", "cpu")]
    if place.has_gpu:
        peers.insert(0, _paged("paged, GPU", "cuda"))
    found = ask(peers, place.weights, _QUICK if place.quick else _COUNT)
    return _finding(found, () if place.has_gpu else (f"queries on a GPU: {NO_GPU}",))


def beside_vllm(place: Place) -> Finding:
    """The same questions to vLLM alone, to vLLM with our drafts, and to our engine."""
    if not place.has_gpu:
        return Finding(not_run=(f"vLLM with and without our drafts: {NO_GPU}; scripts/bench has vLLM's CPU build",))
    peers = [
        _paged("paged", "cuda"),
        Peer("vLLM", "image", settings={**_VLLM, "speculation": "off"}, is_fresh=True),
        Peer("vLLM with our drafts", "image", settings={**_VLLM, "speculation": "auto"}, is_fresh=True),
    ]
    found = ask(peers, place.weights, _QUICK if place.quick else _COUNT)
    missing = tuple(f"{one.name}: {one.error}" for one in found if one.error and _is_missing(one))
    return _finding([one for one in found if not (one.error and _is_missing(one))], missing)


def _is_missing(answers: Answers) -> bool:
    """Whether an engine is not installed, which is no fault of this check's subject."""
    return (answers.error or "").startswith("the environment")


def _finding(found: list[Answers], not_run: tuple[str, ...]) -> Finding:
    figures = [figure for answers in found for figure in answers.figures()]
    if len(found) > 1 and found[0].replies:
        figures += [
            Figure(f"answers of {found[0].name} that are those of {other.name}", float(found[0].equal(other)))
            for other in found[1:]
        ]
    invalid = sum(meaning is None for answers in found for meaning in answers.meanings)
    figures.append(Figure("answers that are not valid", float(invalid), limit=0.0))
    wrong = tuple(line for answers in found for line in answers.wrong)
    return Finding(tuple(figures), wrong, not_run)
