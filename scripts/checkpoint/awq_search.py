"""AutoAWQ's search for scales and clips, recorded instead of applied to a file.

Owns: running AutoAWQ 0.2.9 on a processor without its two faults there. Runs in .venv-awq only.
Knows nothing of packing; what it finds depends on the machine in the last digits.

    result = search(Path("weights/merged"), token_ids, group_size=64, fingerprint=None)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from awq import AutoAWQForCausalLM
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.module import get_op_name

from .awq_search_result import CLIP_STEPS, AwqSearchResult, ScaleGroup
from .calibration import BLOCK_TOKENS
from .tensors import Array

_SCALE_BLOCKS = 2  # enough to choose among 20 candidates; the finer clips are chosen on all blocks
_MOST_SHRUNK = CLIP_STEPS // 2  # AutoAWQ clips to no less than half
_ROWS_AT_ONCE = 128


class RecordingQuantizer(AwqQuantizer):  # type: ignore[misc]
    """Keeps what is found; and searches right, and quickly, without a GPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale_groups: list[ScaleGroup] = []
        self.clip_steps: dict[str, Array] = {}

    def _search_best_scale(self, module: Any, prev_op: Any, layers: Any, inp: Any, **kwargs: Any) -> Any:
        some = inp[:: max(1, len(inp) // _SCALE_BLOCKS)][:_SCALE_BLOCKS]
        before, after, scales = super()._search_best_scale(module, prev_op, layers, some, **kwargs)
        narrow = scales.to(torch.float16)
        prefix = self._prefix(module)
        self.scale_groups.append(
            ScaleGroup(prefix + before, tuple(prefix + name for name in after), narrow.numpy())
        )
        return before, after, narrow.to(scales.dtype)  # later searches see what will be stored

    def _compute_best_scale(self, x: Any, w_mean: Any, x_mean: Any, module: Any, *args: Any) -> Any:
        # AutoAWQ snapshots the weights with `.cpu()`, which copies nothing on a CPU, and then changes
        # them in place. Its snapshot is this module's state_dict, so that one is made to copy.
        plain = module.state_dict
        module.state_dict = lambda: {name: tensor.clone() for name, tensor in plain().items()}
        try:
            return super()._compute_best_scale(x, w_mean, x_mean, module, *args)
        finally:
            del module.state_dict

    def _search_best_clip(self, layer: Any, named_linears: Any, input_feat: Any) -> Any:
        clips = []
        for name, linear in named_linears.items():
            if "q_proj" in name or "k_proj" in name:
                continue  # as AutoAWQ: their product is too sensitive
            steps, limits = self._best_clip_steps(linear.weight.detach(), input_feat[name])
            self.clip_steps[self._prefix(layer) + name] = steps.cpu().numpy()
            clips.append((name, limits.unsqueeze(-1)))
        return clips

    def _best_clip_steps(self, weight: torch.Tensor, inputs: torch.Tensor) -> tuple[Any, Any]:
        """The step with the least squared error of each group's output, and the limit it means.

        The mean of (x · d)² over tokens is d' G d with G the inputs' second moments: one small
        product per group instead of one per token, and all tokens count.
        """
        groups = weight.float().reshape(weight.shape[0], -1, self.group_size)  # [N, G, g]
        features = inputs.to(groups).reshape(-1, groups.shape[1], self.group_size)  # [tokens, G, g]
        moments = torch.einsum("tgi,tgj->gij", features, features) / features.shape[0]
        rows = [
            _best_steps(block, moments, lambda part: self.pseudo_quantize_tensor(part)[0])
            for block in groups.split(_ROWS_AT_ONCE)
        ]
        steps = torch.cat(rows)
        limits = groups.abs().amax(dim=2) * (1 - steps.float() / CLIP_STEPS)
        return steps, limits.to(weight.dtype)

    def _prefix(self, layer: Any) -> str:
        return f"{get_op_name(self.model, layer)}."


def _best_steps(groups: torch.Tensor, moments: torch.Tensor, rounded: Callable[[Any], Any]) -> torch.Tensor:
    largest = groups.abs().amax(dim=2, keepdim=True)
    best = torch.full_like(largest[:, :, 0], torch.inf)
    steps = torch.zeros_like(best, dtype=torch.uint8)
    for step in range(_MOST_SHRUNK):
        limit = largest * (1 - step / CLIP_STEPS)
        change = rounded(groups.clamp(-limit, limit)) - groups  # [N, G, g]
        error = (torch.einsum("ngi,gij->ngj", change, moments) * change).sum(dim=2)
        better = error < best
        best = torch.where(better, error, best)
        steps[better] = step
    return steps


def search(
    folder: Path, texts: Sequence[Sequence[int]], group_size: int, fingerprint: str | None
) -> AwqSearchResult:
    """Search on a checkpoint folder with calibration texts as token ids; progress on stderr."""
    # A CPU computes fp16 slowly and badly; a GPU has no room for a large model in fp32.
    dtype = torch.float16 if torch.cuda.is_available() else torch.float32
    model = AutoAWQForCausalLM.from_pretrained(
        str(folder), torch_dtype=dtype, device_map="cpu", trust_remote_code=False
    )
    model.quantize(
        None,
        {"zero_point": True, "q_group_size": group_size, "w_bit": 4, "version": "GEMM"},
        calib_data=[list(text) for text in texts],
        max_calib_samples=len(texts),
        max_calib_seq_len=BLOCK_TOKENS,
        n_parallel_calib_samples=8,
        export_compatible=True,  # scales and clips only: packing is ours
        quantizer_cls=RecordingQuantizer,
    )
    found: RecordingQuantizer = model.quantizer
    return AwqSearchResult(group_size, found.scale_groups, found.clip_steps, fingerprint, _versions())


def _versions() -> dict[str, str]:
    """What the search ran with."""
    return {name: metadata.version(name) for name in ("autoawq", "torch", "transformers")}
