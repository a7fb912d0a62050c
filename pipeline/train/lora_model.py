"""A base model with a LoRA adapter, by transformers and PEFT, whose loss is computed on packs.

model = LoraModel.load(Path("weights/smollm2-135m-instruct"), rank=16, alpha=32)
model.loss(pack).backward()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.train.answer_loss import answer_loss
from pipeline.train.errors import TrainingError
from pipeline.train.pack_attention import PACK_ATTENTION, PackLayout
from pipeline.train.packing import Pack
from pipeline.train.rounding import layer_rounding
from pipeline.train.straight_through import MergedLora
from pipeline.weights.awq_search_result import AwqSearchResult
from pipeline.weights.sixteen_bits import LINEAR_LAYERS
from serving.weights.adapter_files import CONFIG, TENSORS

# Of a pack with more tokens, only the inputs of layers are kept for the backward pass, which computes the layers again.
# Then a 0.5B base takes about 1 MB a token, and more than 2.4 MB otherwise.
_LONG_PACK: Final = 2048


@dataclass
class LoraModel:
    """A frozen base and its adapter; `peft` is PEFT's model, `rank` and `alpha` are the adapter's."""

    peft: Any
    rank: int
    alpha: int

    @classmethod
    def load(
        cls,
        base: Path,
        rank: int,
        alpha: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        targets: Sequence[str] = LINEAR_LAYERS,
    ) -> LoraModel:
        """Load a checkpoint, and add a new adapter of some layers that changes nothing yet. A and B are float32.

        Raises:
            TrainingError: transformers cannot load the folder, or the checkpoint is quantized.
        """
        try:
            if getattr(AutoConfig.from_pretrained(base, local_files_only=True), "quantization_config", None):
                raise TrainingError(f"{base}: quantized; train on the unquantized checkpoint it was made from")
            model: Any = AutoModelForCausalLM.from_pretrained(
                base, dtype=dtype, attn_implementation=PACK_ATTENTION, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise TrainingError(f"{base}: transformers cannot load it: {error}") from error
        config = LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, task_type="CAUSAL_LM"
        )
        config._register_custom_module({torch.nn.Linear: MergedLora})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of a custom module that it does not know
            peft = get_peft_model(model.to(device), config)
        layers: list[Any] = [module for module in peft.modules() if isinstance(module, GradientCheckpointingLayer)]
        for layer in layers:
            layer.forward = partial(_compute_layer, layer.forward)
        loaded = cls(peft, rank, alpha)
        for parameter in loaded.parameters():
            parameter.data = parameter.data.float()
        loaded.refresh()
        return loaded

    def layers(self) -> Iterator[tuple[str, MergedLora]]:
        """The layers that the adapter changes, by their names in the checkpoint."""
        for name, module in self.peft.base_model.model.named_modules():
            if isinstance(module, MergedLora):
                yield name, module

    def parameters(self) -> list[torch.nn.Parameter]:
        """A and B of all layers."""
        return [parameter for parameter in self.peft.parameters() if parameter.requires_grad]

    def refresh(self) -> None:
        """Merge again; to be called after the parameters have changed."""
        for _, layer in self.layers():
            layer.refresh()

    def round_weights(self, search: AwqSearchResult) -> None:
        """Round merged weights to four bits from now on, as a search result says, which may leave layers in 16 bits."""
        for name, layer in self.layers():
            rounding = None if name in search.sixteen_bits else layer_rounding(search, name)
            layer.rounding = None if rounding is None else rounding.to(layer.base_layer.weight.device)
        self.refresh()

    def loss(self, pack: Pack) -> Tensor:
        """Cross entropy summed over the answer tokens of all branches of a pack."""
        device = self.peft.device
        logits = self.peft(
            input_ids=pack.input_ids.to(device)[None],
            position_ids=pack.positions.to(device)[None],
            pack_layout=PackLayout.of(pack.branches.to(device)),
            logits_to_keep=pack.predict_index.to(device),
            use_cache=False,
        ).logits[0]
        return answer_loss(logits, pack.targets.to(device))

    def save(self, folder: Path, base_name: str) -> None:
        """Write the adapter as PEFT does, in fp16, which is more precise than bf16 for numbers this small."""
        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        partial = folder / f"{TENSORS}.partial"
        save_file({n: t.to("cpu", torch.float16).contiguous() for n, t in state.items()}, partial, {"format": "pt"})
        partial.chmod(0o644)  # safetensors makes it readable by its owner only
        partial.replace(folder / TENSORS)
        config = self.peft.peft_config["default"]
        config.base_model_name_or_path, config.inference_mode = base_name, True
        config.save_pretrained(folder)

    def load_adapter(self, folder: Path) -> None:
        """Continue from an adapter of the same rank and alpha.

        Raises:
            TrainingError: it has another rank or alpha, or belongs to another base.
        """
        config = read_adapter_config(folder)
        if (config.r, config.lora_alpha) != (self.rank, self.alpha):
            raise TrainingError(
                f"{folder}: rank {config.r} and alpha {config.lora_alpha}, the model has {self.rank} and "
                f"{self.alpha}; pass --rank {config.r} --alpha {config.lora_alpha}"
            )
        state = load_file(folder / TENSORS)
        expected = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        shapes, wanted = ({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (state, expected))
        if wrong := sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name)):
            raise TrainingError(
                f"{folder}: {len(wrong)} tensors are missing, unknown or of another shape, for example {wrong[0]}: "
                f"{shapes.get(wrong[0])} where the base needs {wanted.get(wrong[0])}; wrong base model?"
            )
        set_peft_model_state_dict(self.peft, state)
        self.refresh()


def _compute_layer(forward: Callable[..., Any], hidden_states: Tensor, *rest: Any, **named: Any) -> Any:
    """A layer's output; of a long pack nothing else is kept for the backward pass."""
    if hidden_states.shape[1] <= _LONG_PACK:
        return forward(hidden_states, *rest, **named)
    return checkpoint(forward, hidden_states, *rest, use_reentrant=False, preserve_rng_state=False, **named)


def read_adapter_config(folder: Path) -> LoraConfig:
    """The adapter_config.json of a folder.

    Raises:
        TrainingError: there is none.
    """
    if not (folder / CONFIG).is_file():
        raise TrainingError(f"{folder / CONFIG} does not exist; give a folder with a LoRA adapter")
    config: LoraConfig = LoraConfig.from_pretrained(str(folder))
    return config
