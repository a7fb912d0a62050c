"""Log probabilities, penalties and samples compared with transformers' logits, computed in float32 in one pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving.engine import Engine
from serving.types import SamplingParams
from tests.conformance.asking import PROMPTS, Answer, answer, answers, ask
from tests.conformance.kinds import Kind

TOLERANCE = 1e-3  # of logits; the sums are taken in another order
ASKED = 240  # samples of one token
GRAMMAR = "start: /[a-z ]{40}/"
PENALTIES = [
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.9, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.2, "presence_penalty": -0.4, "frequency_penalty": 0.6, "min_tokens": 20},
]


class Oracle:
    """The model of a kind, run by transformers."""

    def __init__(self, kind: Kind) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(kind.model_dir, dtype=torch.float32).eval()
        self._tokenizer = kind.tokenizer

    def logits(self, prompt: str, output: tuple[int, ...] = ()) -> np.ndarray:
        """Raw logits before each token of the output and after the last: [1 + outputs, vocabulary]."""
        tokens = [*self._tokenizer.encode(prompt), *output]
        with self._torch.inference_mode():
            rows = self._model(self._torch.tensor([tokens])).logits[0]
        return rows[len(tokens) - len(output) - 1 :].double().numpy()

    def penalized(self, prompt: str, output: tuple[int, ...], sampling: SamplingParams) -> np.ndarray:
        """The last row of logits after penalties and min_tokens, computed token by token from their definitions."""
        row, read = self.logits(prompt, output)[-1], self._tokenizer.encode(prompt)
        for token in range(len(row)):
            if token in read or token in output:
                row[token] *= sampling.repetition_penalty if row[token] < 0 else 1 / sampling.repetition_penalty
            row[token] -= sampling.frequency_penalty * output.count(token)
            row[token] -= sampling.presence_penalty * (token in output)
            if token in self._tokenizer.eos_token_ids and len(output) < sampling.min_tokens:
                row[token] = -np.inf
        return row


@pytest.fixture(scope="module")
def oracle(kind: Kind) -> Oracle:
    if kind.model_dir is None:
        pytest.skip("no model that transformers computes in float32")
    return Oracle(kind)


def check_logprobs(oracle: Oracle, prompt: str, whole: Answer) -> None:
    rows = oracle.logits(prompt, whole.token_ids)
    for row, found in zip(rows, whole.logprobs, strict=False):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert found.logprob == pytest.approx(expected[found.token_id], abs=TOLERANCE)
        assert [p for _, p in found.top] == pytest.approx(np.sort(expected)[: -len(found.top) - 1 : -1], abs=TOLERANCE)
        assert [p for _, p in found.top] == pytest.approx([expected[t] for t, _ in found.top], abs=TOLERANCE)


@pytest.mark.parametrize("grammar", [None, GRAMMAR])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1, "top_k": 50}, PENALTIES[-1]])
async def test_logprobs_are_the_raw_log_softmax(
    engine: Engine, kind: Kind, oracle: Oracle, grammar: str | None, sampling: dict[str, float]
) -> None:
    """For any sampling and grammar; asked twice, the second time with drafts from the first answer."""
    for prompt in PROMPTS[:2]:
        request = {"grammar": grammar, "max_tokens": 24, "logprobs": 5, **sampling}
        first, second = [await answer(engine, ask(kind.tokenizer, prompt, **request)) for _ in range(2)]
        check_logprobs(oracle, prompt, first)
        assert (first.text, first.logprobs) == (second.text, second.logprobs)


async def test_drafts_are_accepted_under_penalties_with_the_same_logprobs(engine: Engine, kind: Kind) -> None:
    """Otherwise the other tests of this file would compare no drafts."""
    if engine.name != "paged":
        pytest.skip("drafts nothing")
    request = {"grammar": GRAMMAR, "max_tokens": 24, "logprobs": 1, "frequency_penalty": 0.1}
    wholes = [await answer(engine, ask(kind.tokenizer, PROMPTS[9], **request)) for _ in range(3)]
    assert len({whole.logprobs for whole in wholes}) == 1
    assert wholes[-1].metrics.accepted_token_count > 0


@pytest.mark.parametrize("sampling", PENALTIES)
async def test_a_greedy_choice_is_the_best_after_penalties(
    engine: Engine, kind: Kind, oracle: Oracle, sampling: dict[str, float]
) -> None:
    prompts = PROMPTS[:4]
    default, wholes = [
        await answers(engine, [ask(kind.tokenizer, prompt, max_tokens=32, **given) for prompt in prompts])
        for given in ({}, sampling)
    ]
    assert [whole.text for whole in wholes] != [whole.text for whole in default]
    for prompt, whole in zip(prompts, wholes, strict=True):
        for place, token in enumerate(whole.token_ids):
            row = oracle.penalized(prompt, whole.token_ids[:place], SamplingParams(**sampling))
            assert row[token] >= row.max() - TOLERANCE


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 8},
        {"temperature": 1.6, "min_p": 0.15},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.2, "min_p": 0.1, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.5},
    ],
)
async def test_samples_follow_the_distribution_that_is_defined(
    engine: Engine, kind: Kind, oracle: Oracle, sampling: dict[str, float]
) -> None:
    given = SamplingParams(min_tokens=1, max_tokens=1, **sampling)
    expected = ASKED * defined(oracle.penalized(PROMPTS[0], (), given), given)
    counts = np.zeros_like(expected)
    for start in range(0, ASKED, 20):
        requests = [ask(kind.tokenizer) for _ in range(20)]
        requests = [replace(request, sampling=replace(given, seed=start + i)) for i, request in enumerate(requests)]
        for whole in await answers(engine, requests):
            counts[whole.token_ids[0]] += 1
    likely = expected > 0
    assert counts[~likely].sum() == 0
    degrees = int(likely.sum()) - 1
    assert degrees > 2, "a choice among few tokens shows little"
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi_square < degrees + 3.1 * np.sqrt(2 * degrees) + 6  # beyond p = 0.001; the seeds are fixed


def defined(row: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Probabilities by definition: temperature, then min_p, top_k and top_p, each applied to what is left."""
    probs = np.exp((row - row.max()) / sampling.temperature)
    probs[probs < sampling.min_p] = 0
    order = np.argsort(-probs)
    probs[order[sampling.top_k or len(row) :]] = 0
    mass = np.cumsum(probs[order]) / probs.sum()
    probs[order[1 + int((mass < sampling.top_p).sum()) :]] = 0
    return probs / probs.sum()
