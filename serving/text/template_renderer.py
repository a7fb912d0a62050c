"""Renders a conversation with one chat template to marked text, and explains failures to the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2 import TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError

from serving.errors import InvalidRequestError, WeightsError
from serving.text.marked_text import MarkedText, TextTooLongError, check_length, join
from serving.text.template_environment import MAX_SECONDS, RefusedError, TemplateEnvironment, TooSlowError
from serving.text.template_files import SPECIAL_TOKENS

Message = Mapping[str, Any]

# Some templates build control tokens from role names, as in `<|user|>`, so these names count as the template's text.
_ROLES: Final = ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython")
_OVER_LIMITS: Final = (SecurityError, TooSlowError, RecursionError, MemoryError, OverflowError)


class TemplateRenderer:
    """Renders one chat template. Safe to share between threads.

    Args:
        name: of the template, for messages.
        source: Jinja source.
        special_tokens: the tokens' texts by the names that templates use, such as `bos_token`.

    Attributes:
        source: as given.
        variables: names of the variables that the template reads but does not set.

    Raises:
        WeightsError: the template cannot be compiled.
    """

    def __init__(self, name: str, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._name = name
        self._special_tokens = {token: MarkedText.own(text) for token, text in special_tokens.items()}
        environment = TemplateEnvironment()
        try:
            self._template = environment.from_string(source)
            read = meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise WeightsError(f"chat template {name!r}, line {error.lineno}: {error.message}; correct it") from error
        self.variables = frozenset(read - environment.globals.keys())

    def render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> MarkedText:
        """The conversation as text, with marks on what the template itself wrote.

        Args:
            messages: at least one.
            values: the other variables.

        Raises:
            InvalidRequestError: the template refuses the messages or cannot read them.
            WeightsError: the template does something forbidden, or takes too long.
        """
        try:
            return self._generate(messages, values)
        except RefusedError as error:
            raise InvalidRequestError(self._explain(messages, values, error)) from error
        except TextTooLongError as error:
            raise InvalidRequestError(f"the conversation is too long: {error}; send less of it") from error
        except _OVER_LIMITS as error:
            problem = str(error) or f"it takes over {MAX_SECONDS} s"
            raise WeightsError(f"chat template {self._name!r} cannot be rendered: {problem}; correct it") from error
        except Exception as error:  # a template can raise any exception of Python's operators
            if missing := [name for name in SPECIAL_TOKENS if str(error) == f"{name!r} is undefined"]:
                raise WeightsError(f"the chat template needs {missing[0]}; name it in tokenizer_config.json") from error
            problem = str(error).replace(MarkedText.__name__, "str")
            message = f"the chat template cannot read these messages: {problem}"
            raise InvalidRequestError(
                f"{message}; give each a role, a content and any other field that the template needs"
            ) from error

    def leaves_out_calls(self, messages: Sequence[Message], values: Mapping[str, Any], text: str) -> bool:
        """Whether `text`, the rendered conversation, says nothing of the tool calls in it."""
        others = [{name: part for name, part in message.items() if name != "tool_calls"} for message in messages]
        try:
            return others != list(messages) and self._generate(others, values) == text
        except Exception:  # the template needs the calls
            return False

    def leaves_out(self, role: str, messages: Sequence[Message], values: Mapping[str, Any], text: str) -> bool:
        """Whether `text`, the rendered conversation, is the same without the messages of a role."""
        others = [message for message in messages if message.get("role") != role]
        try:
            return bool(others) and self._generate(others, values) == text
        except Exception:  # the template needs these messages
            return False

    def _explain(self, messages: Sequence[Message], values: Mapping[str, Any], error: RefusedError) -> str:
        others = [message for message in messages if message.get("role") != "system"]
        if 0 < len(others) < len(messages):
            try:
                self._generate(others, values)
            except Exception:  # the cause is something else
                pass
            else:
                return f"{no_role('system')} (it says: {error})"
        return f"the chat template refuses these messages: {error}; send them as the model was trained on them"

    def _generate(self, messages: Sequence[Message], values: Mapping[str, Any]) -> MarkedText:
        known = [
            {**message, "role": MarkedText.own(message["role"])} if message.get("role") in _ROLES else dict(message)
            for message in messages
        ]
        pieces, length = [], 0
        for piece in self._template.generate({**self._special_tokens, **values, "messages": known}):
            length += len(piece)
            check_length(length)
            pieces.append(piece)
        return join(pieces)


def no_role(role: str) -> str:
    """The error message for a role that the template does not support."""
    remedy = "put the text into the first user message" if role == "system" else "leave out messages of that role"
    return f"this model's chat template has no role {role!r}; {remedy}"
