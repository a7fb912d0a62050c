"""Read adapter_config.json of PEFT: the scaling of each layer, and what no code here computes, refused by name."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import WeightsError

FILE = "adapter_config.json"
# Keys that change what an adapter does, read below.
_READ = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "use_dora", "fan_in_fan_out"),
    *("bias", "lora_bias", "modules_to_save", "trainable_token_indices", "init_lora_weights", "ensure_weight_tying"),
}
# Keys that tell what was trained and how; the adapter's tensors say the same.
_IGNORED = {
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "runtime_config", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config"),  # initialization or training
}
_MAX_SCALING = 65_504  # float16's largest number; adapters in use have up to a few dozen
_PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "CARTRIDGE")
_REMEDY = "merge it with PEFT's merge_and_unload, and give the result as an ordinary checkpoint"
# Known keys of methods that neither a merge nor the paged engine has. Any other key with a value is refused as unknown.
_REFUSED = {
    "layer_replication": "it changes the number of layers",
    "target_parameters": "it changes parameters of experts, which are not matrices",
    "use_qalora": "QALoRA pools the inputs of a layer",
    "alora_invocation_tokens": "an activated LoRA is not active for all tokens, so no merged weight is the same",
    "use_bdlora": "BD-LoRA has block-diagonal matrices",
    "arrow_config": "Arrow chooses between several adapters for each token",
    "kasa_config": "KaSA changes the base's singular values",
    "monteclora_config": "its matrices are sampled",
    "megatron_config": "the layers of Megatron are split between processes",
}
_LARGEST_RANK = 2**20
_LARGEST = sys.float_info.max
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # values of init_lora_weights


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json says of an adapter; patterns map a regular expression to a layer's rank or alpha."""

    path: Path
    rank: int
    alpha: float
    ranks: dict[str, Any]
    alphas: dict[str, Any]
    rank_stabilized: bool
    dora: bool
    fan_in_fan_out: bool
    saved: tuple[str, ...]
    token_indices: Any

    def rank_of(self, layer: str) -> int:
        """The rank of a layer.

        Raises:
            WeightsError: a pattern is no regular expression, or the rank is out of range.
        """
        rank = self._find(self.ranks, layer, self.rank)
        if type(rank) is not int or not 1 <= rank <= _LARGEST_RANK:
            raise WeightsError(f"{self.path}: the rank of {layer} is {rank!r}; it must be 1 to {_LARGEST_RANK:,}")
        return rank

    def scaling_of(self, layer: str) -> float:
        """The factor of B A in a layer: alpha over the rank, or over its root."""
        alpha, rank = self._find(self.alphas, layer, self.alpha), self.rank_of(layer)
        if type(alpha) not in (int, float) or not -_LARGEST <= alpha <= _LARGEST:  # an int may exceed any float
            raise WeightsError(f"{self.path}: lora_alpha of {layer} is {alpha!r}; it must be a number")
        scaling = float(alpha) / (math.sqrt(rank) if self.rank_stabilized else rank)
        if abs(scaling) > _MAX_SCALING:
            raise WeightsError(
                f"{self.path}: lora_alpha over the rank of {layer} is {scaling:g}, and more than {_MAX_SCALING:,} can "
                "only be a mistake; correct lora_alpha"
            )
        return scaling

    def _find(self, patterns: dict[str, Any], layer: str, default: Any) -> Any:
        """The value of the first pattern that matches the end of the layer's name, as PEFT does."""
        for pattern, value in patterns.items():
            try:
                if re.match(rf"(.*\.)?({pattern})$", layer):
                    return value
            except re.error as error:
                raise WeightsError(f"{self.path}: the pattern {pattern!r} is not valid: {error}") from error
        return default


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The configuration of the adapter in a folder.

    Raises:
        WeightsError: there is none, or the adapter cannot be used.
    """
    path = folder / FILE
    if not path.exists():
        raise WeightsError(f"{folder} has no {FILE}; give a folder that PEFT wrote")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path} is not a JSON object; give a folder that PEFT wrote")
    _refuse(path, config)
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(module, str) for module in saved):
        raise WeightsError(f"{path}: modules_to_save is {saved!r}; it must be a list of names")
    patterns = [config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")]
    if not all(isinstance(pattern, dict) for pattern in patterns):
        raise WeightsError(f"{path}: rank_pattern and alpha_pattern must be objects")
    return AdapterConfig(
        path=path,
        rank=config.get("r", 8),
        alpha=config.get("lora_alpha", 8),
        ranks=patterns[0],
        alphas=patterns[1],
        rank_stabilized=bool(config.get("use_rslora")),
        dora=bool(config.get("use_dora")),
        fan_in_fan_out=bool(config.get("fan_in_fan_out")),
        saved=tuple(saved),
        token_indices=config.get("trainable_token_indices"),
    )


def _refuse(path: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind in _PROMPTS:
        raise WeightsError(
            f"{path}: peft_type is {kind!r}, which adds trained vectors to the prompt and cannot be merged into any "
            "weights; train a LoRA (peft_type 'LORA') on the same data"
        )
    if kind != "LORA":
        raise WeightsError(f"{path}: peft_type is {kind!r}; only 'LORA' can be used: {_REMEDY}")
    init = str(config.get("init_lora_weights")).lower()
    if init.startswith(_CHANGES_BASE):
        raise WeightsError(
            f"{path}: init_lora_weights is {init!r}, which changed the base before training; save the adapter again "
            "with path_initial_model_for_weight_conversion, or merge it with PEFT"
        )
    for key, value in config.items():
        if key in _READ | _IGNORED or value in (None, False, [], {}):
            continue
        if key in _REFUSED:
            raise WeightsError(f"{path}: {key} is {value!r} and cannot be used ({_REFUSED[key]}); {_REMEDY}")
        raise WeightsError(f"{path}: {key} is {value!r}, an unknown key; if it changes nothing, remove it")
    if config.get("bias", "none") not in ("none", "all", "lora_only", None):
        raise WeightsError(f"{path}: bias is {config['bias']!r}; it must be 'none', 'all' or 'lora_only'")
