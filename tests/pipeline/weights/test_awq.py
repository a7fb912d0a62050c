"""Rounding, AutoAWQ's layout, and scales that change only the rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.weights.awq_checkpoint import AwqCheckpoint, linear_names, write_awq_model, write_companions
from pipeline.weights.awq_format import dequantize, pack, quantize, unpack
from pipeline.weights.awq_search_result import AwqSearchResult, ScaleGroup, load_search_result, save_search_result
from pipeline.weights.errors import CheckpointError
from pipeline.weights.gguf_source import GgufCheckpoint
from pipeline.weights.safetensors_io import SafetensorsFile, write_safetensors
from tests.pipeline.weights.checkpoint_fixtures import Arrays, write_gguf

BLOCK = "model.layers.0."


def test_nibbles_are_in_autoawq_s_order() -> None:
    """Columns 0 2 4 6 1 3 5 7 from the lowest nibble up: its kernels unpack two at a time."""
    assert pack(np.array([[0, 1, 2, 3, 4, 5, 6, 7]])).view(np.uint32).tolist() == [[0x75316420]]
    assert pack(np.array([[15] * 8, [0] * 8])).tolist() == [[-1], [0]]


@given(
    arrays(
        np.uint8,
        st.tuples(st.integers(1, 5), st.integers(1, 4).map(lambda n: 8 * n)),
        elements=st.integers(0, 15),
    )
)
def test_unpack_undoes_pack(levels: np.ndarray) -> None:
    np.testing.assert_array_equal(unpack(pack(levels)), levels)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from([16, 32, 64]), st.floats(1e-4, 10))
def test_rounding_errors_are_at_most_half_a_step(seed: int, group_size: int, spread: float) -> None:
    weight = np.random.default_rng(seed).normal(scale=spread, size=(8, 2 * group_size)).astype(np.float32)
    packed = quantize(weight, group_size)
    assert packed.qweight.shape == (2 * group_size, 1)
    assert packed.qzeros.shape == (2, 1)
    assert packed.scales.shape == (2, 8)
    step = np.repeat(packed.scales.astype(np.float32).T, group_size, axis=1)
    error = np.abs(dequantize(packed, group_size) - weight)
    levels = unpack(packed.qweight).T
    inside = (levels > 0) & (levels < 15)
    assert (error[inside] <= 0.51 * step[inside]).all()
    # up to another half step at an end of the range, because the zero point is rounded too
    assert (error <= 1.01 * step).all()


@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_a_constant_group_is_kept(value: float) -> None:
    weight = np.full((8, 64), value, dtype=np.float32)
    np.testing.assert_allclose(dequantize(quantize(weight, 64), 64), weight, rtol=1e-3)


def test_a_group_of_one_sign_is_kept() -> None:
    """AutoAWQ's own rounding has no room for the offset of such a group and cuts it off."""
    weight = np.linspace(1.0, 2.0, 64, dtype=np.float32).reshape(1, 64).repeat(8, axis=0)
    assert np.abs(dequantize(quantize(weight, 64), 64) - weight).max() < 2 / 15


def tiny_block(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"{BLOCK}input_layernorm.weight": rng.uniform(0.5, 1.5, 64).astype(np.float32),
        f"{BLOCK}self_attn.q_proj.weight": rng.normal(size=(64, 64)).astype(np.float32),
        f"{BLOCK}mlp.up_proj.weight": rng.normal(size=(128, 64)).astype(np.float32),
        f"{BLOCK}mlp.down_proj.weight": rng.normal(size=(64, 128)).astype(np.float32),
        "model.embed_tokens.weight": rng.normal(size=(10, 64)).astype(np.float32),
    }


def tiny_search(fingerprint: str | None = None) -> AwqSearchResult:
    rng = np.random.default_rng(9)
    groups = [
        ScaleGroup(
            f"{BLOCK}input_layernorm",
            (f"{BLOCK}self_attn.q_proj",),
            rng.uniform(0.2, 5, 64).astype(np.float16),
        ),
        ScaleGroup(f"{BLOCK}mlp.up_proj", (f"{BLOCK}mlp.down_proj",), rng.uniform(0.2, 5, 128).astype(np.float16)),
    ]
    steps = {f"{BLOCK}mlp.down_proj": rng.integers(0, 10, (64, 2)).astype(np.uint8)}
    return AwqSearchResult(64, groups, steps, fingerprint, {"autoawq": "0.2.9"})


def test_scales_do_not_change_the_model() -> None:
    """One layer's outputs are divided by the factors that multiply the next layer's inputs."""
    block, search = tiny_block(), tiny_search()

    def scaled(name: str) -> np.ndarray:
        return search.scale(BLOCK + name, block[f"{BLOCK}{name}.weight"]).astype(np.float64)

    x = np.random.default_rng(2).normal(size=64)
    plain = block[f"{BLOCK}self_attn.q_proj.weight"] @ (block[f"{BLOCK}input_layernorm.weight"] * x)
    np.testing.assert_allclose(scaled("self_attn.q_proj") @ (scaled("input_layernorm") * x), plain, rtol=1e-4)
    plain = block[f"{BLOCK}mlp.down_proj.weight"] @ (block[f"{BLOCK}mlp.up_proj.weight"] @ x)
    np.testing.assert_allclose(scaled("mlp.down_proj") @ (scaled("mlp.up_proj") @ x), plain, rtol=1e-4)


def test_a_bias_is_scaled_like_its_layer_s_outputs() -> None:
    """Scales of the next layer's inputs divide the outputs of this one, its bias too; its own inputs' do not."""
    layer, following = f"{BLOCK}self_attn.v_proj", f"{BLOCK}self_attn.o_proj"
    before = ScaleGroup(f"{BLOCK}input_layernorm", (layer,), np.full(64, 4.0, np.float32))
    after = ScaleGroup(layer, (following,), np.arange(1.0, 65.0, dtype=np.float32))
    search = AwqSearchResult(64, scale_groups=(before, after))
    rng = np.random.default_rng(3)
    tensors = {
        f"{layer}.weight": rng.normal(size=(64, 64)).astype(np.float32),
        f"{layer}.bias": rng.normal(size=64).astype(np.float32),
    }
    quantized = AwqCheckpoint(Arrays(tensors), search)
    assert quantized.specs()[f"{layer}.bias"].shape == (64,)
    np.testing.assert_allclose(quantized.load(f"{layer}.bias"), tensors[f"{layer}.bias"] / after.scales)


def test_clip_limits_each_group_to_its_fraction() -> None:
    weight = np.array([[4.0, -2.0, 1.0, -8.0]], dtype=np.float32)
    search = AwqSearchResult(2, clip_steps={"layer": np.array([[5, 0]], dtype=np.uint8)})
    assert search.clip("layer", weight).tolist() == [[3.0, -2.0, 1.0, -8.0]]  # 1 - 5/20 of 4; all of 8
    assert search.clip("other", weight) is weight


def test_checkpoint_equals_manual_rounding() -> None:
    block, search = tiny_block(), tiny_search()
    quantized = AwqCheckpoint(Arrays(block), search)
    for name, spec in quantized.specs().items():
        assert quantized.load(name).shape == spec.shape
    down = f"{BLOCK}mlp.down_proj"
    weight = search.clip(down, search.scale(down, block[f"{down}.weight"]))
    expected = quantize(weight, 64)
    np.testing.assert_array_equal(quantized.load(f"{down}.qweight"), expected.qweight)
    np.testing.assert_array_equal(quantized.load(f"{down}.qzeros"), expected.qzeros)
    np.testing.assert_array_equal(quantized.load(f"{down}.scales"), expected.scales)
    assert quantized.specs()["model.embed_tokens.weight"].dtype == "F16"


def test_only_layers_inside_blocks_are_quantized(tmp_path: Path) -> None:
    names = linear_names([*GgufCheckpoint(write_gguf(tmp_path / "t.gguf")).specs(), "lm_head.weight"])
    assert len(names) == 2 * 7
    assert not any("head" in name or "embed" in name or "norm" in name for name in names)


def test_sizes_that_the_layout_cannot_hold_are_refused() -> None:
    odd = Arrays({f"{BLOCK}mlp.up_proj.weight": np.zeros((64, 96), np.float32)})
    with pytest.raises(CheckpointError, match=r"up_proj is \[64, 96\].*--group-size"):
        AwqCheckpoint(odd, AwqSearchResult(64))


def test_a_search_result_is_read_back_from_its_file(tmp_path: Path) -> None:
    search, path = tiny_search("sha256:abc"), tmp_path / "search.safetensors"
    save_search_result(path, search)
    loaded = load_search_result(path)
    assert (loaded.group_size, loaded.fingerprint, loaded.made_with) == (
        64,
        "sha256:abc",
        {"autoawq": "0.2.9"},
    )
    for before, after in zip(search.scale_groups, loaded.scale_groups, strict=True):
        assert (before.before, before.after) == (after.before, after.after)
        np.testing.assert_array_equal(before.scales, after.scales)
    np.testing.assert_array_equal(
        loaded.clip_steps[f"{BLOCK}mlp.down_proj"], search.clip_steps[f"{BLOCK}mlp.down_proj"]
    )


def test_clip_steps_take_half_a_byte(tmp_path: Path) -> None:
    steps = {"layer": np.arange(15, dtype=np.uint8).reshape(5, 3) % 10}
    path = tmp_path / "search.safetensors"
    save_search_result(path, AwqSearchResult(64, clip_steps=steps))
    assert SafetensorsFile(path).specs()["layer.clip_steps"].nbytes == 8
    np.testing.assert_array_equal(load_search_result(path).clip_steps["layer"], steps["layer"])


def test_another_kind_of_file_is_refused_as_search_result(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", Arrays(tiny_block()))
    with pytest.raises(CheckpointError, match="not a result of scripts/quantize_awq"):
        load_search_result(tmp_path / "m.safetensors")


def test_a_result_for_other_weights_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="belongs to the checkpoint sha256:other"):
        write_awq_model(tmp_path / "model.safetensors", Arrays(tiny_block()), tiny_search("sha256:other"))
    assert list(tmp_path.iterdir()) == []


def test_a_chat_template_is_copied(tmp_path: Path) -> None:
    """Newer checkpoints have it in a separate file; without it the model would get prompts in another form."""
    source, output = tmp_path / "source", tmp_path / "output"
    for folder in (source, output):
        folder.mkdir()
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    write_companions(source, {"model_type": "llama"}, AwqSearchResult(32), output)
    assert (output / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
