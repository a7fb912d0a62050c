"""Encodes a schema task's prompts as token ids, from a template or with the checkpoint's chat template.

Words of control tokens become control tokens only where the template has them. In a caller's text they are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from serving.text.control_tokens import ControlTokens
from tasks.errors import TaskFileError
from tasks.schema.options import Conversation, SchemaOptions
from tasks.schema.template import Template

PromptEncoder = Callable[[Mapping[str, str]], list[int]]  # input name → text, to token ids


def prompt_encoder(options: SchemaOptions, folder: Path, tokenizer: Tokenizer) -> PromptEncoder:
    """The function that encodes prompts for the checkpoint in this folder.

    Raises:
        TaskFileError: the options need a chat template, but there is none or it refuses such a conversation.
        WeightsError: the tokenizer or the chat template cannot be used.
    """
    template = options.prompt_template()
    if options.template is not None:
        return _text_encoder(options.template, template, tokenizer)
    chat_template = ChatTemplate.from_dir(folder, tokenizer)
    if chat_template is None:
        raise TaskFileError(
            "chat: the checkpoint has no chat template; give template, or put chat_template.jinja beside task.json"
        )
    encode = _conversation_encoder(options.chat or Conversation(), template, chat_template)
    try:
        encode(dict.fromkeys(options.inputs, "Hello"))
    except InvalidRequestError as error:
        raise TaskFileError(f"chat: {error}") from error
    return encode


def _text_encoder(source: str, template: Template, tokenizer: Tokenizer) -> PromptEncoder:
    controls = ControlTokens(tokenizer, source)
    words = [word for word in sorted(controls.words, key=len, reverse=True) if word in source]
    if not words:
        return lambda texts: tokenizer.encode(template.fill(texts))
    control = re.compile(f"({'|'.join(map(re.escape, words))})")
    bos = list(tokenizer.bos_token_ids)

    def encode(texts: Mapping[str, str]) -> list[int]:
        ids = controls.encode_segments(
            (part, is_own and part in words)
            for text, is_own in template.pieces(texts)
            for part in (control.split(text) if is_own else [text])
        )
        return ids if ids[: len(bos)] == bos else [*bos, *ids]

    return encode


def _conversation_encoder(chat: Conversation, template: Template, chat_template: ChatTemplate) -> PromptEncoder:
    def encode(texts: Mapping[str, str]) -> list[int]:
        contents = {"system": chat.system, "user": template.fill(texts)}
        messages = [
            {"role": role, "content": text if chat_template.takes_text else [{"type": "text", "text": text}]}
            for role, text in contents.items()
            if text is not None
        ]
        return chat_template.encode(messages, variables=chat.variables)

    return encode
