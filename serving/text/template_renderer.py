"""Renders a conversation with one chat template to marked text, and explains failures to the caller.

Templates run in Jinja's immutable sandbox, with transformers' extensions. Every constant of a template and all text
between its tags are `MarkedText`; values from outside have no marks. Loops that take too long and texts that grow too
large are errors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateSyntaxError, meta, nodes, pass_context, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.errors import InvalidRequestError, WeightsError
from serving.text.marked_text import MarkedText, TextTooLongError, check_length, join
from serving.text.template_files import SPECIAL_TOKENS

MAX_SECONDS: Final = 5.0
_MAX_EXPONENT: Final = 1_000


class RefusedError(TemplateError):
    """The template called `raise_exception`, because it does not support this conversation."""


class TooSlowError(Exception):
    """Rendering took more than MAX_SECONDS."""


class _CodeGenerator(CodeGenerator):
    """Jinja's code generator; in its code all constants of the template are marked."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.own({value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares a mutable class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag and its body; called by Jinja."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _TimedContext(Context):
    """The variables and the deadline of one rendering."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline = time.monotonic() + MAX_SECONDS


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates. Safe to share between threads."""

    code_generator_class = _CodeGenerator
    context_class = _TimedContext
    concat = staticmethod(join)
    intercepted_binops = frozenset({"*", "**"})  # checked for size, and not folded at compile time

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False, cache_size=0
        )
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def own(self, text: str) -> str:
        """Mark a constant; called by compiled templates."""
        return MarkedText.own(text)

    def join(self, parts: Iterable[Any]) -> str:
        """Concatenate with marks; called by compiled templates for `~`."""
        return join(map(str, parts))

    @pass_context
    def check_time(self, context: _TimedContext) -> None:
        """Check the deadline; called by compiled templates in each iteration of a loop.

        Raises:
            TooSlowError: the deadline has passed.
        """
        if time.monotonic() > context.deadline:
            raise TooSlowError

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check the result's size; called by compiled templates for the operators of `intercepted_binops`."""
        if operator == "**" and not (abs(left) <= _MAX_EXPONENT and abs(right) <= _MAX_EXPONENT):
            raise OverflowError(f"{left} ** {right} is too large")
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                check_length(len(sequence) * times)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            check = nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(check).set_lineno(loop.lineno))
        return template


def _raise_exception(message: str) -> NoReturn:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' filter; Jinja's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def _join(
    context: nodes.EvalContext, value: Iterable[Any], d: str = MarkedText(), attribute: str | int | None = None
) -> str:
    """Jinja's filter with a separator that keeps marks, also if the template gives none."""
    return str(do_join(context, value, d, attribute))


Message = Mapping[str, Any]

# Some templates build control tokens from role names, as in `<|user|>`, so these names count as the template's text.
_ROLES: Final = ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython")
_OVER_LIMITS: Final = (SecurityError, TooSlowError, RecursionError, MemoryError, OverflowError)


class TemplateRenderer:
    """Renders one chat template. Safe to share between threads.

    Args:
        name: the name of the template, for messages.
        source: Jinja source.
        special_tokens: the tokens' texts by the names that templates use, such as `bos_token`.

    Attributes:
        source: the Jinja source, as given.
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
