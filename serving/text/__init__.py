"""Converts text to token ids and back; `chat_template` is imported separately, because that takes longer."""

from serving.text.detokenizer import IncrementalDetokenizer
from serving.text.tokenizer import Tokenizer, context_length, num_logits

__all__ = ["IncrementalDetokenizer", "Tokenizer", "context_length", "num_logits"]
