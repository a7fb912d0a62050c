"""Hold a server's tokens to the request's grammar: a server that ignores it must not go unnoticed."""

from __future__ import annotations

from dataclasses import replace

from serving.clients.answer import EngineOutput
from serving.errors import EngineDeadError
from serving.grammar.grammar_state import GrammarState

_BACKEND = """--structured-outputs-config '{"backend": "guidance"}'"""


class GrammarCheck:
    """The grammar of one answer.

    Args:
        state: at the start of the grammar.
        server: its address, for the error.
    """

    def __init__(self, state: GrammarState, server: str) -> None:
        self._state = state
        self._server = server

    def follow(self, output: EngineOutput) -> EngineOutput:
        """The output up to the end of the text, which is complete when the grammar allows only the end.

        Raises:
            EngineDeadError: the grammar does not allow a token.
            GrammarError: it failed, because it is too ambiguous.
        """
        tokens = list(output.token_ids)
        count = self._state.accept(tokens)
        if self._state.is_complete:
            return _ended(output, count)
        if count == len(tokens):
            return output
        if self._state.may_end:  # an end token of the server that is none of the checkpoint's
            return _ended(output, count)
        raise EngineDeadError(
            f"{self._server} gave token {tokens[count]}, which the request's grammar does not allow; start vLLM with "
            "the checkpoint and tokenizer of WEIGHTS_DIR and " + _BACKEND
        )


def _ended(output: EngineOutput, count: int) -> EngineOutput:
    logprobs = None if output.logprobs is None else output.logprobs[:count]
    return replace(output, token_ids=output.token_ids[:count], logprobs=logprobs, finish_reason="stop")
