"""An entry of the list that is made of others answers as the adapter that scripts/merge_adapters writes."""

from __future__ import annotations

import pytest
import torch

from pipeline.weights.merging.adapter_merge import merge_adapters
from serving.adapters.adapter_store import AdapterStore
from serving.adapters.combination import Combination
from serving.adapters.registry import AdapterEntry
from serving.engines.paged.adapters import combine_adapters
from serving.errors import AdapterError, WeightsError
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.models.lora_loader import load_lora
from tests.serving.engines.paged.adapter_folders import write_adapter
from tests.serving.models import tiny_checkpoints

METHODS = {"linear": None, "cat": None, "mean": None, "ties": 0.5, "dare_linear": 0.7, "dare_ties": 0.7}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path_factory.mktemp("base"))
    return load_with_kernels(folder, ReferenceKernels()).weights.decoder


def read(folder, weights, max_rank=64):
    return load_lora(folder, weights, max_rank=max_rank, max_bytes=10**7)


def combine(combination, folders, weights, max_rank=64):
    parts = {name: read(folder, weights) for name, folder in zip(combination.names, folders, strict=True)}
    return combine_adapters(AdapterEntry("both", None, max_rank=max_rank, combination=combination), parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_matrices_as_the_folder_that_the_command_writes(tmp_path, weights, method, dtype):
    """With layers that none of them changes."""
    folders = [
        write_adapter(tmp_path / name, weights, seed=seed, modules=["self_attn.q_proj", "mlp.down_proj"], dtype=dtype)
        for seed, name in enumerate("ab")
    ]
    combination = Combination(method, ("a", "b"), (0.75, 0.5), METHODS[method])
    found = combine(combination, folders, weights).lora
    merge_adapters(folders, combination, tmp_path / "out")
    expected = read(tmp_path / "out", weights).lora
    for mine, written in zip(found.layers, expected.layers, strict=True):
        for one, other in zip(mine, written, strict=True):
            assert one.scaling == other.scaling
            assert one.down.dtype == other.down.dtype
            assert torch.equal(one.down, other.down)
            assert torch.equal(one.up, other.up)
            assert one.up.is_contiguous()
            assert one.down.is_contiguous()


def test_ranks_that_add_up_beyond_the_limit_are_refused(tmp_path, weights):
    folders = [write_adapter(tmp_path / name, weights, rank=rank) for name, rank in (("a", 3), ("b", 5))]
    combination = Combination("cat", ("a", "b"), (1, 1))
    assert combine(combination, folders, weights, max_rank=8).lora.max_rank == 8
    with pytest.raises(AdapterError, match="the result has rank 8, the limit is 7; raise its max_rank"):
        combine(combination, folders, weights, max_rank=7)
    with pytest.raises(AdapterError, match=r"a has rank 3 in model\.layers\.0\.self_attn\.q_proj, b has 5"):
        combine(Combination("linear", ("a", "b"), (1, 1)), folders, weights)


def test_the_digest_depends_on_the_parts_and_the_recipe(tmp_path, weights):
    folders = [write_adapter(tmp_path / name, weights, seed=seed) for seed, name in enumerate("abc")]
    ties = Combination("ties", ("a", "b"), (1, 1), 0.5)
    digests = [
        combine(ties, folders[:2], weights).digest,
        combine(ties, folders[:2], weights).digest,
        combine(ties, folders[1:], weights).digest,
        combine(Combination("ties", ("a", "b"), (1, 2), 0.5), folders[:2], weights).digest,
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.fixture
def make(weights):
    stores = []

    def load(entry):
        try:
            return read(entry.source, weights)
        except WeightsError as error:
            raise AdapterError(f"adapter {entry.name!r} cannot be loaded: {error}") from error

    def make(folders, **fields):
        entries = {name: AdapterEntry(name, folder) for name, folder in folders.items()}
        combination = Combination("linear", tuple(folders), (1,) * len(folders))
        entries["both"] = AdapterEntry("both", None, combination=combination, **fields)
        stores.append(AdapterStore(entries, load, combine=combine_adapters, max_bytes=10**7))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


async def use(store, name):
    async with store.lease(name) as lora:
        return lora


async def test_it_is_made_when_it_is_first_used_and_its_parts_do_not_stay_in_memory(tmp_path, weights, make):
    store = make({name: write_adapter(tmp_path / name, weights, seed=seed) for seed, name in enumerate("ab")})
    assert store.in_memory == {}
    assert await use(store, "both") is await use(store, "both")
    assert list(store.in_memory) == ["both"]


def test_it_can_be_pinned(tmp_path, weights, make):
    store = make({name: write_adapter(tmp_path / name, weights) for name in "ab"}, pinned=True)
    store.load_pinned()
    assert list(store.in_memory) == ["both"]


async def test_a_part_that_is_broken_or_has_changed_fails_only_what_is_made_of_it(tmp_path, weights, make):
    folders = {name: write_adapter(tmp_path / name, weights, seed=seed) for seed, name in enumerate("ab")}
    store = make(folders)
    await use(store, "a")
    write_adapter(folders["a"], weights, seed=5)
    with pytest.raises(AdapterError, match=r"'both' cannot be loaded: adapter 'a' has the digest .* have changed"):
        await use(store, "both")
    write_adapter(folders["a"], weights, seed=0)
    assert await use(store, "both") is not None
    (folders["b"] / "adapter_config.json").unlink()
    with pytest.raises(AdapterError, match="'both' cannot be loaded: adapter 'b' cannot be loaded"):
        await use(make(folders), "both")
