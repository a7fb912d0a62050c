"""Encodes conversations as token ids with the checkpoint's own chat template.

    template = ChatTemplate.from_dir(folder, tokenizer)
    template.encode([{"role": "user", "content": "Hello"}])

The ids are those of transformers' `apply_chat_template`, with one difference: the words of control tokens in a
caller's texts, in any field, are plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from serving.constraints import CallFormat
from serving.errors import InvalidRequestError, WeightsError
from serving.text.call_format import DEFAULT_FORMAT, find_call_format
from serving.text.control_tokens import ControlTokens
from serving.text.template_files import SPECIAL_TOKENS, read_special_tokens, read_template, read_templates
from serving.text.template_renderer import Message, TemplateRenderer, no_role
from serving.text.tokenizer import Tokenizer

_PROBE: Final = "Probe"
_ARGUMENTS: Final = ("messages", "tools", "documents", "add_generation_prompt")
_PLAIN: Final[Mapping[str, Any]] = {"tools": None, "documents": None, "add_generation_prompt": True}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {}}},
}
_CALL: Final = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}
_SAMPLES: Final[Sequence[Sequence[Message]]] = (
    ({"role": "system", "content": "A"}, {"role": "user", "content": "B"}),
    ({"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}),
    (
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "1"},
    ),
)


class ChatTemplate:
    """The templates of one checkpoint. Safe to share between threads.

    Args:
        sources: Jinja sources by name: `default`, and perhaps `tool_use` for calls with tools.
        tokenizer: the tokenizer of the checkpoint.
        special_tokens: the tokens' texts by the names that templates use, such as `bos_token`.

    Attributes:
        takes_text: whether the template accepts a text as a message's content.
        takes_parts: whether it accepts a list of parts such as `{"type": "text", "text": "Hello"}`.
        controls: the control tokens.
        takes_system: whether it shows a system message.
        writes_calls: whether it shows tools and writes calls of them in a known format.
        call_format: how the model writes calls: as the template does, or in the default format.
        default_format: the default format, in which calls can be told from any JSON.

    Raises:
        WeightsError: a template cannot be compiled, or its control tokens cannot be distinguished from a caller's text.
    """

    def __init__(self, sources: Mapping[str, str], tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> None:
        self._renderers = {name: TemplateRenderer(name, source, special_tokens) for name, source in sources.items()}
        if "default" not in self._renderers:
            known = ", ".join(self._renderers)
            raise WeightsError(
                f"the checkpoint has no chat template `default`, only {known}; rename one of them to `default`"
            )
        self.controls = ControlTokens(tokenizer, "\n".join(sources.values()), tuple(special_tokens.values()))
        self.takes_text = self._shows(_PROBE)
        self.takes_parts = self._shows([{"type": "text", "text": _PROBE}])
        self.takes_system = self._shows(_PROBE, system=True)
        self._check_marks()
        found = self._find_call_format(tokenizer)
        self.writes_calls = found is not None
        self.default_format = self._with_tokens(DEFAULT_FORMAT, tokenizer)
        self.call_format = found or self.default_format

    @classmethod
    def from_dir(cls, folder: Path, tokenizer: Tokenizer, *, file: str | None = None) -> Self | None:
        """The checkpoint's templates; None if it has none. A template `file` in the folder is used instead of them.

        Raises:
            WeightsError: see `ChatTemplate`; or a file cannot be read.
        """
        sources = {"default": read_template(folder / file)} if file else read_templates(folder)
        return cls(sources, tokenizer, read_special_tokens(folder)) if sources else None

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, with BOS if the template writes it.

        Args:
            messages: objects with `role`, `content`, and any other fields that the template reads.
            tools: descriptions of functions that the model may call.
            documents: texts that it may use.
            add_generation_prompt: whether the prompt ends with the beginning of an answer.
            variables: more variables for the template, such as `enable_thinking`.

        Raises:
            InvalidRequestError: the template refuses the conversation, or does not use a part of it.
            WeightsError: rendering the template fails, or the template does something forbidden.
        """
        if not messages:
            raise InvalidRequestError("messages: the list is empty; give at least one")
        renderer = self._renderer(bool(tools))
        _check_variables(renderer.variables, tools, documents, variables or {})
        values = {
            "tools": list(tools) or None,
            "documents": list(documents) or None,
            "add_generation_prompt": add_generation_prompt,
            **(variables or {}),
        }
        text = renderer.render(messages, values)
        for role in _unusual_roles(messages):
            if renderer.leaves_out(role, messages, values, text):
                raise InvalidRequestError(no_role(role))
        if renderer.leaves_out_calls(messages, values, text):
            raise InvalidRequestError(
                "messages: the chat template of this model writes nothing of tool_calls; write what was called into "
                "the message's content, as the model was trained on it"
            )
        return self.controls.encode_segments(self.controls.segments(text))

    def _renderer(self, has_tools: bool) -> TemplateRenderer:
        return self._renderers["tool_use" if has_tools and "tool_use" in self._renderers else "default"]

    def _find_call_format(self, tokenizer: Tokenizer) -> CallFormat | None:
        renderer = self._renderer(True)
        if "tools" not in renderer.variables:
            return None

        def render(messages: Sequence[Message], is_prompt: bool) -> str:
            content = [{**message, "content": self._content(message["content"])} for message in messages]
            values = {**_PLAIN, "tools": [_TOOL], "add_generation_prompt": is_prompt}
            return str.__str__(renderer.render(content, values))

        found = find_call_format(render)
        return found and self._with_tokens(found, tokenizer)

    def _content(self, text: str) -> Any:
        return text if self.takes_text else [{"type": "text", "text": text}]

    def _with_tokens(self, found: CallFormat, tokenizer: Tokenizer) -> CallFormat:
        """The format with its words that are control tokens."""
        texts = "\0".join((found.marker, found.opening, found.middle, found.closing, found.between or ""))
        ids = {word: self.controls.id_of(word) for word in self.controls.words if word in texts}
        tokens = tuple((word, ids[word], tokenizer.token_bytes(ids[word]).decode()) for word in sorted(ids))
        return replace(found, tokens=tokens)

    def _shows(self, content: Any, *, system: bool = False) -> bool:
        """Whether the template renders a user's message, or a system message before one, with this content as text."""
        messages = [{"role": "user", "content": content}]
        if system:
            messages = [
                {"role": "system", "content": self._content(content)},
                {"role": "user", "content": self._content("A")},
            ]
        try:
            text = self._renderers["default"].render(messages, _PLAIN)
        except InvalidRequestError:
            return False
        return _PROBE in text and "'type'" not in text  # a template may render a list as Python's repr

    def _check_marks(self) -> None:
        """Refuse a template that builds control tokens in a way that loses their marks."""
        for name, renderer in self._renderers.items():
            for messages in _SAMPLES:
                try:
                    text = renderer.render(messages, {**_PLAIN, "tools": [_TOOL]})
                except InvalidRequestError:
                    continue  # not a conversation for this template
                if lost := self.controls.lost_words(text):
                    raise WeightsError(
                        f"chat template {name!r} builds {lost[0]!r} with a function or filter, so that it cannot be "
                        "distinguished from a caller's text; use + or ~"
                    )


def _check_variables(
    known: frozenset[str], tools: Sequence[Any], documents: Sequence[Any], variables: Mapping[str, Any]
) -> None:
    """Refuse arguments that the template would ignore, and variables that would replace its built-in ones."""
    for argument, value in (("tools", tools), ("documents", documents)):
        if value and argument not in known:
            raise InvalidRequestError(f"{argument}: this model's chat template does not use them; leave them out")
    usable = sorted(known.difference(_ARGUMENTS, SPECIAL_TOKENS))
    for variable in variables:
        if variable not in usable:
            names = ", ".join(usable) or "none"
            raise InvalidRequestError(f"the chat template reads no variable {variable!r}; those it reads: {names}")


def _unusual_roles(messages: Sequence[Message]) -> Iterator[str]:
    """Roles of nonempty messages that a template may silently leave out."""
    roles = dict.fromkeys(str(message.get("role")) for message in messages if message.get("content"))
    return (role for role in roles if role not in ("user", "assistant"))
