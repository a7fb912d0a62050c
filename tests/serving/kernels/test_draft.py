"""The draft model in C++ and in numpy: the same guesses as the module that is trained, however it is read."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.training.draft_examples import batch_tensors
from scripts.training.draft_model import DraftModel
from serving.draft_weights import MAX_TOKENS, DraftWeights
from serving.kernels.build import build_library, find_compiler
from serving.kernels.draft import create_draft_kernel
from serving.kernels.draft_base import BEST, CACHE_BLOCK, MOST_WRITTEN, DraftKernel
from serving.kernels.draft_cpp import CppDraft
from serving.kernels.draft_numpy import NumpyDraft
from tests.draft_models import VOCAB, load_weights, write_draft_model

CANDIDATES = np.arange(10, 90, dtype=np.int32)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 60).tolist()
NEEDS_COMPILER = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
BUILDS = {"native": (), "wide": ("-DHK_WIDE", "-O1")}
if platform.machine() == "x86_64":
    BUILDS |= {"narrow": ("-mno-avx512f", "-O1"), "without tiles": ("-DHK_NO_AMX", "-O1")}
EXACT = {
    "numpy": 2e-3,
    "narrow": 1e-2,
    "without tiles": 1e-2,
}  # the first rounds nothing, the others keys and values
KINDS = ["numpy", *(pytest.param(name, marks=NEEDS_COMPILER) for name in BUILDS)]


def make_kernel(folder: Path, kind: str) -> DraftKernel:
    return kernel_of(load_weights(folder, write_draft_model(folder)[1]), kind)


def kernel_of(weights: DraftWeights, kind: str) -> DraftKernel:
    if kind == "numpy":
        return NumpyDraft(weights)
    library = build_library(BUILDS[kind])
    assert library is not None, "the kernels do not compile"
    return CppDraft(weights, library)


def ask(kernel: DraftKernel, *pieces: tuple[int, list[int]], cache=None, together: int = 0):
    """Tokens and chances after the last of some pieces, each with its place; so many are read together."""
    cache = kernel.new_cache() if cache is None else cache
    for i, (start, ids) in enumerate(pieces):
        tokens, chances = kernel.run(cache, start, ids, CANDIDATES, together=i < together)
    return tokens, np.array(chances)


def assert_same(first, second) -> None:
    assert first[0][0] == second[0][0]
    # Weights and inputs may be rounded to 8 bits.
    np.testing.assert_allclose(of_tokens(first), of_tokens(second), atol=0.03)


def of_tokens(found) -> np.ndarray:
    """Chances by token; a small one may lack where another is as likely."""
    chances = np.zeros(VOCAB)
    chances[found[0]] = found[1]
    return chances


def expect(model: DraftModel, parts: list[list[int]], answer: Sequence[int] = ()):
    """What the module that is trained says."""
    ids, _, seen = batch_tensors([(parts, list(answer))])
    last = sum(map(len, parts)) + len(answer) - 1
    with torch.no_grad():
        logits = model.logits(ids, torch.tensor(CANDIDATES, dtype=torch.long), seen)[0, last]
    chances, places = logits.softmax(-1).topk(BEST)
    return CANDIDATES[places].tolist(), chances.numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_guesses_are_those_of_the_module_that_is_trained(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    model, embedding = write_draft_model(tmp_path, dtype=dtype)
    kernel = kernel_of(load_weights(tmp_path, embedding), kind)
    found, expected = ask(kernel, (0, TOKENS)), expect(model, [TOKENS[:1]], TOKENS[1:])
    assert_same(found, expected)
    if kind in EXACT:
        assert found[0] == expected[0]
        np.testing.assert_allclose(
            found[1], expected[1], rtol=EXACT[kind]
        )  # weights of the module are not rounded


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_is_read_together_sees_all_of_itself_and_what_stands_before(
    tmp_path: Path, kind: str
) -> None:
    model, embedding = write_draft_model(tmp_path)
    kernel = kernel_of(load_weights(tmp_path, embedding), kind)
    parts, answer = [TOKENS[:37], TOKENS[37:50]], TOKENS[50:]
    pieces = ((0, parts[0]), (37, parts[1]), (50, answer))
    found = ask(kernel, *pieces, together=2)
    assert_same(found, expect(model, parts, answer))
    assert np.abs(of_tokens(found) - of_tokens(ask(kernel, *pieces))).max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_give_what_the_whole_gives(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    whole = ask(kernel, (0, TOKENS))
    assert_same(ask(kernel, (0, TOKENS[:7]), (7, TOKENS[7:8]), (8, TOKENS[8:40]), (40, TOKENS[40:])), whole)


@pytest.mark.parametrize("count", [1, 15, 16, 21, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_blocks_of_a_cache_can_be_copied(tmp_path: Path, kind: str, count: int) -> None:
    kernel = make_kernel(tmp_path, kind)
    first, copy = kernel.new_cache(), kernel.new_cache()
    ask(kernel, (0, TOKENS[:count]), cache=first)
    held = -(-count // CACHE_BLOCK) * CACHE_BLOCK
    copy.view(np.uint8)[:] = 255  # NaN: what nobody copied is never read
    copy[..., :held, :] = first[..., :held, :]
    assert_same(ask(kernel, (count, TOKENS[count:]), cache=copy), ask(kernel, (0, TOKENS)))
    assert MAX_TOKENS % CACHE_BLOCK == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_over_leaves_no_trace(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    cache = kernel.new_cache()
    ask(kernel, (0, TOKENS[::-1]), cache=cache)
    assert_same(
        ask(kernel, (0, TOKENS[:30]), (30, TOKENS[30:35]), cache=cache), ask(kernel, (0, TOKENS[:35]))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_few_candidates_are_all_returned_and_their_chances_are_shares(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    tokens, chances = kernel.run(kernel.new_cache(), 0, TOKENS, np.array([4, 250], np.int32))
    assert sorted(tokens) == [4, 250]
    assert sum(chances) == pytest.approx(1.0)
    assert chances[0] >= chances[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_place_can_be_asked_again_among_the_tokens_that_are_allowed(
    tmp_path: Path, kind: str
) -> None:
    kernel = make_kernel(tmp_path, kind)
    cache, allowed = kernel.new_cache(), [12, 40, 77, 250]
    bits = np.zeros((VOCAB + 31) // 32, np.uint32)
    for token in allowed:
        bits[token // 32] |= np.uint32(1 << token % 32)
    kernel.run(cache, 0, TOKENS, CANDIDATES)
    again = kernel.run(cache, 0, (), CANDIDATES, bits.view(np.int32))
    among = kernel.run(cache, 0, TOKENS, np.array(allowed[:3], np.int32))
    assert again[0] == among[0]
    np.testing.assert_allclose(again[1], among[1], rtol=1e-5)
    assert kernel.run(cache, 0, (), CANDIDATES, np.zeros_like(bits).view(np.int32)) == ([], [])


def write(kernel: DraftKernel, **how):
    """What is written behind the first 40 tokens, the shares, and what may follow."""
    return kernel.write(kernel.new_cache(), 0, TOKENS[:40], CANDIDATES, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_written_are_the_likeliest_tokens_as_long_as_they_are_sure(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    tokens, shares, best = write(kernel, most=5, sure=0.0)
    assert len(tokens) == len(shares) == 5
    cache, read = kernel.new_cache(), TOKENS[:40]
    for token, share in zip(tokens, shares, strict=True):
        likeliest, chances = kernel.run(cache, 0, read, CANDIDATES)
        assert of_tokens((likeliest, chances))[token] == pytest.approx(share, abs=0.01) == chances[0]
        read = [*read, token]
    assert_same(best, kernel.run(cache, 0, read, CANDIDATES))
    limit = sorted(shares)[2]
    num_sure = next(i for i, share in enumerate(shares) if share < limit) if shares[0] >= limit else 0
    assert write(kernel, most=5, sure=limit)[0] == tokens[:num_sure]
    assert write(kernel, most=2, sure=0.0)[0] == tokens[:2]
    assert write(kernel, most=5, sure=1.1)[:2] == ([], [])
    assert len(write(kernel, most=10 * MOST_WRITTEN, sure=0.0)[0]) == MOST_WRITTEN


@pytest.mark.parametrize("kind", KINDS)
def test_what_always_follows_two_tokens_is_written_behind_them(tmp_path: Path, kind: str) -> None:
    tokens, _, _ = write(make_kernel(tmp_path, kind), most=2, sure=0.0)
    a, b, c, d = *tokens, 15, 16
    pairs = [
        (a, b, c),
        (b, c, d),
        (a, 0, 1),
        (a, VOCAB - 1, 1),
        (0, b, 1),
        (VOCAB - 1, b, 1),
        (TOKENS[38], a, 1),
    ]
    weights = load_weights(tmp_path, write_draft_model(tmp_path, always=pairs)[1])
    kernel = kernel_of(weights, kind)
    written, shares, best = write(kernel, most=4, sure=0.0)
    assert (written, shares[2:]) == ([a, b, c, d], [1.0, 1.0])
    assert_same(best, kernel.run(kernel.new_cache(), 0, TOKENS[:40] + written, CANDIDATES))
    assert write(kernel, most=3, sure=0.0)[0] == [a, b, c]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_ends_with_the_room_for_it(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    ids = (TOKENS * 9)[: MAX_TOKENS - 2]
    tokens, _, best = kernel.write(kernel.new_cache(), 0, ids, CANDIDATES, most=8, sure=0.0)
    assert len(tokens) == 2
    assert_same(best, kernel.run(kernel.new_cache(), 0, ids + tokens, CANDIDATES))


@NEEDS_COMPILER
def test_bits_for_too_few_tokens_are_refused(tmp_path: Path) -> None:
    kernel = make_kernel(tmp_path, "native")
    with pytest.raises(ValueError, match="bits"):
        kernel.run(kernel.new_cache(), 0, TOKENS, CANDIDATES, np.zeros(VOCAB // 32, np.int32))


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("start", "ids", "candidates"),
    [
        (0, [VOCAB], CANDIDATES),
        (0, [-1], CANDIDATES),
        (-1, [1], CANDIDATES),
        (MAX_TOKENS, [1], CANDIDATES),
        (0, [1] * (MAX_TOKENS + 1), CANDIDATES),
        (0, [1], np.array([-1, 2, 3, 4], np.int32)),
        (0, [1], np.array([1, 2, 3, VOCAB], np.int32)),
    ],
)
def test_what_is_out_of_range_is_refused(tmp_path: Path, start: int, ids: list[int], candidates) -> None:
    kernel = make_kernel(tmp_path, "native")
    with pytest.raises(IndexError):
        kernel.run(kernel.new_cache(), start, ids, candidates)


def test_without_a_compiler_numpy_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_weights(tmp_path, write_draft_model(tmp_path)[1])
    monkeypatch.setattr("serving.kernels.draft.build_library", lambda: None)
    assert isinstance(create_draft_kernel(weights), NumpyDraft)
