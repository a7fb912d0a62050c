"""Drives llguidance over bytes, so that tests of the grammar need no tokenizer."""

import llguidance
import llguidance.numpy
import numpy as np

BYTES = llguidance.LLTokenizer("byte")
MAX_WALK = 100_000
_CLOSERS = frozenset(b"\"'}]")


def matcher(grammar, tokenizer=BYTES):
    result = llguidance.LLMatcher(tokenizer, grammar)
    assert not result.get_error(), result.get_error()
    return result


def accepts(grammar, text):
    data = list(text.encode())
    state = matcher(grammar)
    return state.try_consume_tokens(data) == len(data) and state.is_accepting()


def allowed_tokens(state, tokenizer=BYTES):
    mask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
    llguidance.numpy.fill_next_token_bitmask(state, mask, 0)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.nonzero(bits[: tokenizer.vocab_size])[0].tolist()


def walk(grammar, random, hurry, tokenizer=BYTES):
    """Choose random allowed tokens to the end; `hurry` is the probability of closing a string, list or object."""
    state, written = matcher(grammar, tokenizer), []
    while not state.is_stopped():
        allowed = allowed_tokens(state, tokenizer)
        assert allowed, "the grammar led into a dead end"
        closing = [token for token in allowed if tokenizer.decode_bytes([token])[:1] in map(_byte, _CLOSERS)]
        token = random.choice(closing if closing and random.random() < hurry else allowed)
        assert state.consume_token(token)
        if token != tokenizer.eos_token:
            written.append(token)
        assert len(written) < MAX_WALK, "the grammar has no end"
    assert not state.is_error()
    return tokenizer.decode_bytes(written).decode()


def _byte(value):
    return bytes([value])


def forced_after(grammar, text):
    """The text that the grammar forces after this text."""
    state = matcher(grammar)
    assert state.consume_tokens(list(text.encode()))
    return state.compute_ff_bytes().decode()
