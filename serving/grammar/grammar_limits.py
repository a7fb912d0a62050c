"""Limits on the size of a constraint, and on the work of compiling and following it.

Text lengths are checked first. llguidance limits some of its own work, but not all: `multipleOf` 99999989 keeps it
busy for minutes, and 5,000 definitions that refer to each other overflow its stack. So a separate process compiles
each grammar first and is ended when it exceeds a limit: see `trial`.
"""

from __future__ import annotations

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from serving.errors import GrammarError

# Lengths in characters.
MAX_LARK = 512 * 1024  # a task that lets a model choose among a thousand long names needs 437,000
MAX_SCHEMA = 256 * 1024

MAX_COMPILE_SECONDS = 0.5  # processor time on one core
MAX_SEARCH_SECONDS = 0.3  # to find the place of an error in a schema
MAX_COMPILE_BYTES = 512 * 1024 * 1024  # address space of the process in `trial`
# Smaller than the 8 MB of a thread, so that a grammar that passes the trial cannot overflow a thread's stack later.
TRIAL_STACK_BYTES = 1024 * 1024


def parser_limits() -> LLParserLimits:
    """llguidance's own limits. Its defaults for a step, during which other requests wait, allow 20 to 100 ms."""
    return LLParserLimits(
        initial_lexer_fuel=250_000,  # about 250 ms
        max_lexer_states=50_000,  # about 1.5 kB each, for the lifetime of the compiled grammar
        verbose_errors=False,
    )


def limited_matcher(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start of a grammar, or in error where it does not compile within the limits.

    Its first step is computed, which refuses a grammar whose first step is too expensive, and warms up that step.
    """
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def check_length(name: str, length: int, limit: int) -> None:
    """Refuse a text that is too long; `length` and `limit` are in characters.

    Raises:
        GrammarError: the length is above the limit.
    """
    if length > limit:
        raise GrammarError(f"{name}: {length:,} characters, and the limit is {limit:,}; shorten it")
