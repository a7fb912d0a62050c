"""vLLM holds an adapter on a four-bit base to its golden prompts before requests get its answers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.errors import AdapterError
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams
from serving.weights.adapter_files import CONFIG, GOLDEN, TENSORS
from tests.serving.engines.paged.adapter_folders import write_registry
from tests.serving.engines.paged.paged_engines import collect
from tests.serving.engines.vllm.four_bit_kernels import NEEDS_KERNELS
from tests.small_model import ADAPTER, WEIGHTS

pytestmark = [pytest.mark.vllm, pytest.mark.weights, NEEDS_KERNELS]
LENGTH = 8  # the model is sure of the first tokens of a query, so rounding changes none
PROMPTS = [
    f"### Columns:\n{columns}\n### Question:\n{question}\n### Query:\n"
    for columns, question in (
        ("['duration_ms', 'http.route', 'error']", "errors by route"),
        ("['duration_ms', 'service.name']", "p99 of duration_ms by service.name"),
        ("['user.id', 'region']", "how many users"),
    )
]


def engine_with(engine: str, adapters: Path, **settings: object) -> Engine:
    limits = {"max_model_len": 256, "max_num_seqs": 8, "num_threads": 2}
    return create_engine(Settings(engine=engine, weights_dir=WEIGHTS, adapters=adapters, **limits, **settings))


def ask(prompt: list[int], adapter: str | None) -> GenerationRequest:
    return GenerationRequest(f"ask-{adapter}", tuple(prompt), SamplingParams(max_tokens=LENGTH), adapter=adapter)


async def our_answers(adapters: Path, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What our engine answers with the adapter on the same base, with nothing rounded but the weights."""
    engine = engine_with("paged", adapters, dtype="float32")
    try:
        return [tuple((await collect(engine, ask(prompt, "right"))).token_ids) for prompt in prompts]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter without golden prompts, called "right" and "wrong" in a list.

    It is that which is merged into the weights already, so only a small part of it is added once more.
    """
    folder = tmp_path_factory.mktemp("adapters")
    config = json.loads((ADAPTER / CONFIG).read_text())
    config["lora_alpha"] = config["lora_alpha"] / 16
    for name in ("right", "wrong"):
        (folder / name).mkdir()
        shutil.copy(ADAPTER / TENSORS, folder / name / TENSORS)
        (folder / name / CONFIG).write_text(json.dumps(config))
    write_registry(folder / "adapters.yaml", {name: folder / name for name in ("right", "wrong")}, max_rank="32")
    return folder


def write_golden(folder: Path, prompts: list[list[int]], answers: list[tuple[int, ...]]) -> None:
    lines = [
        json.dumps({"prompt": prompt, "answer": list(answer), "ends": False, "text": ""})
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    (folder / GOLDEN).write_text("".join(line + "\n" for line in lines))


async def test_the_right_one_answers_and_the_wrong_one_is_refused_while_others_run(folder: Path) -> None:
    tokenizer = Tokenizer.from_dir(WEIGHTS)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    answers = await our_answers(folder / "adapters.yaml", prompts)
    assert len(set(answers)) > 1 and all(len(answer) == LENGTH for answer in answers)
    write_golden(folder / "right", prompts, answers)
    write_golden(folder / "wrong", prompts, [answers[0], answers[2], answers[1]])

    engine = engine_with("vllm", folder / "adapters.yaml")
    try:
        asked = (ask(prompts[0], "right"), ask(prompts[0], "wrong"), ask(prompts[0], None))
        right, wrong, base = await asyncio.gather(
            *(collect(engine, request) for request in asked), return_exceptions=True
        )
        assert tuple(right.token_ids) == answers[0] and base.token_ids
        assert isinstance(wrong, AdapterError)
        assert f"adapter 'wrong' cannot be loaded: {GOLDEN}, line 2: on this base it differs" in str(wrong)
    finally:
        engine.close()
