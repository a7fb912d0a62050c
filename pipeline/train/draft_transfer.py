"""Start a draft model for one base from a draft model of another base.

The layers of a draft model work on projected token vectors, not on token ids. Tokens that both vocabularies have should
therefore get the same vectors: a least-squares fit of the new projection to the old vectors. Tokens of the new base
alone get what the fit gives them.

    transfer(model, Path("small/draft.model"), embedding=small_embedding, shared=shared_tokens(new, small))
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from pipeline.train.draft_network import DraftNetwork
from pipeline.train.errors import TrainingError

_RIDGE = 10.0  # keeps the fit solvable; between 1 and 1,000 it changes nothing


def shared_tokens(tokenizer: Path, other: Path) -> Tensor:
    """[n, 2] int64: the ids in both vocabularies of tokens with the same text.

    Args:
        tokenizer: tokenizer.json of the base that the draft model is for.
        other: tokenizer.json of the base that the other draft model belongs to.

    Raises:
        TrainingError: a vocabulary is not a table of tokens, or they share no token.
    """
    first, second = _vocabulary(tokenizer), _vocabulary(other)
    pairs = [(first[text], second[text]) for text in sorted(first.keys() & second.keys())]
    if not pairs:
        raise TrainingError(f"{tokenizer} and {other} share no token; leave out --from-weights")
    return torch.tensor(pairs)


def transfer(model: DraftNetwork, path: Path, *, embedding: Tensor, shared: Tensor) -> None:
    """Set the weights of `model` from the draft model of another base.

    Args:
        model: changed in place; it must have the width of the other, and at least as many layers.
        embedding: [V, H] of the other base.
        shared: from `shared_tokens`.

    Raises:
        TrainingError: as `DraftNetwork.restore`.
    """
    size = model.final_norm.shape[0]
    other = DraftNetwork(embedding, size=size, num_layers=len(model.layers))
    other.restore(path)
    with torch.no_grad():
        vectors, biases = other.token_vectors(shared[:, 1])
        inputs = model.embedding[shared[:, 0]]
        gram = inputs.T @ inputs + _RIDGE * torch.eye(inputs.shape[1])
        fitted = torch.linalg.solve(gram, inputs.T @ torch.cat((vectors, biases[:, None]), 1))
        state = other.state_dict()
        state["project.weight"] = fitted[:, :size].T.contiguous()
        state["bias.weight"] = fitted[:, size:].T.contiguous()
        model.load_state_dict(state)


def _vocabulary(path: Path) -> dict[str, int]:
    try:
        vocabulary = json.loads(path.read_text())["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{path}: not a tokenizer with a vocabulary: {error!r}") from error
    if not isinstance(vocabulary, dict):
        raise TrainingError(
            f"{path}: its vocabulary is not a table of tokens, as of a byte-level BPE; only such can be compared"
        )
    return vocabulary
