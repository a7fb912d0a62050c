"""The body of a request to `/v1/completions`, as vLLM's server takes it."""

from __future__ import annotations

from serving.clients.vllm_parameters import vllm_parameters
from serving.grammar.grammar_text import grammar_text
from serving.text import Tokenizer
from serving.types import GenerationRequest


def request_body(
    request: GenerationRequest, model: str, *, tokenizer: Tokenizer, max_model_len: int
) -> dict[str, object]:
    """A streamed request for token ids.

    Args:
        request: a request that `check_request` has accepted, with a constraint that compiles.
        model: the server's name of the model or adapter.
        tokenizer: its end tokens end an answer.
        max_model_len: maximum number of prompt and output tokens.

    Raises:
        InvalidRequestError: vLLM does not support a parameter, or would change it.
    """
    body: dict[str, object] = {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "request_id": request.request_id,
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # in log probabilities
        # Whether the server verifies drafts is not known. If it does, it refuses min_p itself.
        **vllm_parameters(request, tokenizer=tokenizer, max_model_len=max_model_len, speculates=False),
    }
    if request.constraint is not None:
        body["structured_outputs"] = {"grammar": grammar_text(request.constraint)}
    return body
