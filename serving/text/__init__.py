"""Text to token ids and back. Owns nothing itself: see `tokenizer` and `detokenizer`.

Engines get token ids and give token ids; what is between is here, and knows nothing of models.

    from serving.text import IncrementalDetokenizer, Tokenizer
"""

from serving.text.detokenizer import IncrementalDetokenizer
from serving.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "Tokenizer"]
