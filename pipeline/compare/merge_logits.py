"""How far the logits of merges are from those of the live adapter: the one that was written, and one without NF4."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer

from pipeline.compare.compare_checkpoints import Texts, texts_that_fit
from pipeline.compare.plain_weights import PlainWeights
from pipeline.weights.calibration import model_text_ids, read_texts
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.live_weights import LiveWeights
from pipeline.weights.merging.merge import Rounding

if TYPE_CHECKING:  # it imports transformers, which need not be there
    from pipeline.weights.layer_loading import ModelTensors

CHEAP: Final = 2_000_000_000  # bytes of weights up to which logits are compared without being asked for
_MAX_TOKENS: Final = 1024  # of all texts together, padding included
TEXT: Final = """\
Summarize the incident: checkout latency rose from 120 ms to 2.4 s between 14:05 and 14:40 UTC, after the deploy of
version 3.18. The database was at 95 % of its connections; a retry loop in the payment client had doubled the load.
{"service": "checkout", "p99_ms": 2400, "errors": ["timeout", "connection refused"], "resolved": true}
def mean(values): return sum(values) / len(values)
"""


def compare_logits(
    base: Path, adapter: Path, merged: Path, rounding: Rounding, texts: Path | None, wanted: bool | None
) -> dict[str, Any]:
    """The divergence of each merge from the live adapter, or why it was not computed; also printed.

    Args:
        merged: the folder of the merge of both that was written.
        rounding: how the base was rounded for the merge.
        texts: lines of {"text": …}; None takes a short text of our own.
        wanted: whether to compare; None if it is cheap.

    Raises:
        CheckpointError: the file of texts cannot be used.
    """
    why = _reason(merged, wanted)
    if why is None:
        tokenizer = Tokenizer.from_file(str(merged / "tokenizer.json"))
        try:
            return _compare(base, adapter, merged, rounding, _tokens(tokenizer, texts))
        except (CheckpointError, ValueError) as error:  # ValueError: an architecture that transformers does not know
            if texts is not None or wanted:
                raise CheckpointError(f"logits cannot be compared: {error}") from error
            why = str(error)
    say(f"Logits were not compared: {why}")
    return {"skipped": why}


def _reason(merged: Path, wanted: bool | None) -> str | None:
    """The reason why logits are not to be compared; None where they are."""
    size = sum(path.stat().st_size for path in merged.glob("*.safetensors"))
    if wanted is False:
        return "--no-logits"
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        return "this environment has no transformers; --logits makes one that has"
    if not (merged / "tokenizer.json").is_file():
        return "the base has no tokenizer.json"
    if wanted is None and size > CHEAP:
        return f"the weights have {size / 1e9:.1f} GB, so it takes long; --logits does it"
    return None


def _tokens(tokenizer: Tokenizer, texts: Path | None) -> Texts:
    """The token ids of the texts that fit the limit; all their tokens count."""
    given = [TEXT] if texts is None else read_texts(texts)
    return texts_that_fit(((model_text_ids(tokenizer, text)[:_MAX_TOKENS], 1) for text in given), _MAX_TOKENS)


def _compare(base: Path, adapter: Path, merged: Path, rounding: Rounding, tokens: Texts) -> dict[str, Any]:
    from pipeline.compare.divergence import divergences  # torch and transformers: slow to import

    written = PlainWeights(merged)
    live = LiveWeights(base, adapter, written.config, rounding.value)
    ways: dict[str, ModelTensors] = {"plain_merge": written}
    if rounding is not Rounding.NONE:
        plain = LiveWeights(base, adapter, written.config, None, plain=True)
        ways = {"nf4_merge": written, "plain_merge": plain}
    found = divergences(live, list(ways.values()), tokens)
    report = {way: asdict(one) for way, one in zip(ways, found, strict=True)}
    for way, one in report.items():
        say(
            f"Logits of the {way.replace('_', ' ')} against the live adapter, {one['positions']} tokens: "
            f"KL {one['kl']:.2e} nats on average, {one['largest_kl']:.2e} at most; "
            f"the same likeliest token at {100 * one['top1']:.1f} %"
        )
    return report
