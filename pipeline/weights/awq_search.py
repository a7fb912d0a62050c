"""Run AutoAWQ's search for scales and clips (Lin et al. 2023, "AWQ"), and record them and the inputs' moments.

It runs in .venv-awq only, with AutoAWQ 0.2.9, and works around that version's faults on a CPU. The result depends on
the machine in its last digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from awq.models._config import AwqConfig
from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.module import get_op_name
from rich.console import Console
from rich.progress import track

from pipeline.weights.awq_moments import best_clip_steps, input_moments
from pipeline.weights.awq_search_result import CLIP_STEPS, AwqSearchResult, ScaleGroup, SearchState
from pipeline.weights.calibration import BLOCK_TOKENS
from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.console import say
from pipeline.weights.error_feedback import Feedback
from pipeline.weights.layer_loading import UsedEmbeddings, empty_model, loaded_layer
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.sixteen_bits import TOGETHER
from pipeline.weights.tensors import Array

_SCALE_BLOCKS = 2  # blocks of text to choose scales on, enough for 20 candidates; clips are chosen on all blocks
_ROWS_AT_ONCE = 128


class RecordingQuantizer(AwqQuantizer):  # type: ignore[misc]
    """AutoAWQ's quantizer, which also records its results, and searches correctly and faster on a CPU."""

    def __init__(self, *args: Any, feedback_rank: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feedback_rank = feedback_rank
        self.feedback: list[Feedback] = []
        self.scale_groups: list[ScaleGroup] = []
        self.clip_steps: dict[str, Array] = {}
        self._losses: list[float] = []

    def _search_best_scale(self, module: Any, prev_op: Any, layers: Any, inp: Any, **kwargs: Any) -> Any:
        blocks = inp[:: max(1, len(inp) // _SCALE_BLOCKS)][:_SCALE_BLOCKS]
        before, after, scales = super()._search_best_scale(module, prev_op, layers, blocks, **kwargs)
        narrow = scales.to(torch.float16)
        prefix = self._prefix(module)
        self.scale_groups.append(ScaleGroup(prefix + before, tuple(prefix + name for name in after), narrow.numpy()))
        return before, after, narrow.to(scales.dtype)  # later searches use the values that are stored

    def _compute_best_scale(
        self, x: Any, w_mean: Any, x_mean: Any, module: Any, layers: Any, wanted: Any, kwargs: Any
    ) -> Any:
        # AutoAWQ saves the module's state_dict with `.cpu()`, which copies nothing on a CPU, and then changes the
        # weights in place. So state_dict is made to return copies.
        original = module.state_dict
        module.state_dict = lambda: {name: tensor.clone() for name, tensor in original().items()}
        self._losses = []
        try:
            best = super()._compute_best_scale(x, w_mean, x_mean, module, layers, wanted, kwargs)
        finally:
            del module.state_dict
        # With duo scaling no candidate is the plain weight, which is the best where no channel stands out.
        lowest = min(self._losses)
        unscaled_is_best = self._unscaled_loss(x, module, layers, wanted, kwargs) <= lowest
        return torch.ones_like(best) if unscaled_is_best else best

    def _compute_loss(self, *args: Any) -> float:
        self._losses.append(float(super()._compute_loss(*args)))
        return self._losses[-1]

    def _unscaled_loss(self, x: Any, module: Any, layers: Any, wanted: Any, kwargs: Any) -> float:
        """The loss of a module whose layers are rounded without scales."""
        weights = [layer.weight.data for layer in layers]
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.data = self.pseudo_quantize_tensor(weight)[0]
        found = self._module_forward(x, module, kwargs)
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.data = weight
        return self._compute_loss(wanted, found, x.device)

    def _search_best_clip(self, layer: Any, named_linears: Any, input_feat: Any) -> Any:
        clips = []
        for name, linear in named_linears.items():
            if "q_proj" in name or "k_proj" in name:
                continue  # as in AutoAWQ: attention scores are too sensitive to clipping
            steps, limits = self._best_clip_steps(linear.weight.detach(), input_feat[name])
            self.clip_steps[self._prefix(layer) + name] = steps.cpu().numpy()
            clips.append((name, limits.unsqueeze(-1)))
        if self._feedback_rank:
            self._find_feedback(layer, input_feat)
        return clips

    def _find_feedback(self, layer: Any, input_feat: Any) -> None:
        """Record the moments of the scaled inputs; layers that share inputs share them."""
        for sharing in TOGETHER:
            names = [name for name in input_feat if name.rpartition(".")[2] in sharing]
            inputs = input_feat[names[0]]
            norms, components = input_moments(inputs.reshape(-1, inputs.shape[-1]).float(), self._feedback_rank)
            layers = tuple(self._prefix(layer) + name for name in names)
            self.feedback.append(Feedback.of(layers, norms.cpu().numpy(), components.cpu().numpy()))

    def _best_clip_steps(self, weight: torch.Tensor, inputs: torch.Tensor) -> tuple[Any, Any]:
        """The step with the least squared error of each group's output, and the limit it means.

        The mean of (x · d)² over tokens is d' G d with G the inputs' second moments: one small
        product per group instead of one per token, and all tokens count.
        """
        groups = weight.float().reshape(weight.shape[0], -1, self.group_size)  # [N, G, g]
        features = inputs.to(groups).reshape(-1, groups.shape[1], self.group_size)  # [tokens, G, g]
        moments = torch.einsum("tgi,tgj->gij", features, features) / features.shape[0]
        rows = [
            best_clip_steps(block, moments, lambda part: self.pseudo_quantize_tensor(part)[0])
            for block in groups.split(_ROWS_AT_ONCE)  # type: ignore[no-untyped-call]
        ]
        steps = torch.cat(rows)
        limits = groups.abs().amax(dim=2) * (1 - steps.float() / CLIP_STEPS)
        return steps, limits.to(weight.dtype)

    def _prefix(self, layer: Any) -> str:
        return f"{get_op_name(self.model, layer)}."


def search(
    folder: Path,
    texts: Sequence[Sequence[int]],
    group_size: int,
    fingerprint: str,
    state: SearchState,
    *,
    feedback_rank: int,
) -> AwqSearchResult:
    """Search for the scales and clips of a checkpoint, one layer in memory at a time.

    Args:
        texts: token ids of calibration texts, of at most a block each.
        group_size: weights that share a scale.
        fingerprint: the checkpoint's fingerprint, which is recorded in the result.
        state: the state of the search; layers that it has are not searched again; each finished layer is saved in it.
        feedback_rank: principal components of each layer's inputs that error feedback uses; 0 rounds to nearest.

    Raises:
        CheckpointError: config.json does not fit the tensors.
    """
    # fp16 is slow and inaccurate on a CPU; on a GPU it is what the model is served in.
    dtype = torch.float16 if torch.cuda.is_available() else torch.float32
    config, source = unquantized_config(folder), SafetensorsCheckpoint(folder)
    tokens_hash = hashlib.sha256(json.dumps([list(text) for text in texts]).encode()).hexdigest()
    about = {
        "checkpoint": fingerprint,
        "config": config,
        "texts": tokens_hash,
        "group_size": group_size,
        "feedback_rank": feedback_rank,
    }
    num_layers = int(config["num_hidden_layers"])
    done = state.begin({**about, "dtype": str(dtype), "versions": _versions()})
    if done:
        say(f"Continuing after {done} of {num_layers} layers")
    if done < num_layers:
        model = empty_model(config)
        model.model.embed_tokens = UsedEmbeddings(source, [token for text in texts for token in text], dtype)
        quantizer = _quantizer(model, config["model_type"], texts, group_size, feedback_rank)
        _search_layers(model, quantizer, source, state, range(done, num_layers), dtype)
    found = [state.result(layer) for layer in range(num_layers)]
    scales = [group for result in found for group in result.scale_groups]
    clips = {name: steps for result in found for name, steps in result.clip_steps.items()}
    feedback = [group for result in found for group in result.feedback_groups]
    return AwqSearchResult(group_size, scales, clips, fingerprint, _versions(), feedback)


@torch.no_grad()
def _search_layers(
    model: Any,
    quantizer: RecordingQuantizer,
    source: SafetensorsCheckpoint,
    state: SearchState,
    layers: range,
    dtype: torch.dtype,
) -> None:
    if layers.start:
        quantizer.inps = torch.from_numpy(state.hidden(layers.start).copy()).to(dtype)
    for index in track(layers, description="Searching", console=Console(stderr=True)):
        with loaded_layer(model.model.layers[index], index, source, dtype):
            quantizer.modules = [model.model.layers[index]]
            quantizer.scale_groups, quantizer.clip_steps, quantizer.feedback = [], {}, []
            quantizer.quantize()
        found = quantizer.scale_groups, quantizer.clip_steps
        result = AwqSearchResult(quantizer.group_size, *found, feedback_groups=quantizer.feedback)
        state.finish_layer(index, result, quantizer.inps.cpu().numpy())


def _quantizer(
    model: Any, model_type: str, texts: Sequence[Sequence[int]], group_size: int, feedback_rank: int
) -> RecordingQuantizer:
    """A quantizer with the hidden states before the first layer; it asks for that layer, and does not run it."""
    model.model.layers[0].to_empty(device="cpu")
    settings = AwqConfig(zero_point=True, q_group_size=group_size, w_bit=4, version="gemm")
    wrapped = AWQ_CAUSAL_LM_MODEL_MAP[model_type](model, model_type, False, model.config, settings, None)
    quantizer = RecordingQuantizer(
        wrapped,
        model,
        None,
        settings.w_bit,
        settings.q_group_size,
        settings.zero_point,
        settings.version,
        calib_data=[list(text) for text in texts],
        split=None,
        text_column=None,
        duo_scaling=True,
        export_compatible=True,  # scales and clips only: packing is ours
        n_parallel_calib_samples=8,
        max_calib_samples=len(texts),
        max_calib_seq_len=BLOCK_TOKENS,
        feedback_rank=feedback_rank,
    )
    model.model.layers[0].to("meta")
    return quantizer


def _versions() -> dict[str, str]:
    """The versions of the packages that the search uses."""
    return {name: metadata.version(name) for name in ("autoawq", "torch", "transformers")}
