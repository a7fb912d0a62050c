"""A grammar's state follows the tokens, rolls back, and never accepts a token that it forbids."""

import json
import threading

import numpy as np
import pytest
import tokenizers

from serving.constraints import JsonSchemaConstraint, LarkConstraint
from serving.errors import GrammarError, WeightsError
from serving.grammar.compiler import GrammarCompiler
from serving.text import Tokenizer
from tests.tiny_tokenizers import byte_level, metaspace, unigram

JSON = LarkConstraint('start: "{\\"op\\": \\"" OP "\\"}"\nOP: "COUNT" | "SUM" | "COUNT_DISTINCT"\n')
VOCAB_SIZE = byte_level().vocab_size + 12  # a model may have more logits than its tokenizer has tokens


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


@pytest.fixture
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, cache_size=2)


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_bos=False)


def allowed(state) -> set[int]:
    mask = np.zeros(-(-VOCAB_SIZE // 32), np.int32)
    state.fill_bitmask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_it_accepts_what_the_grammar_allows_up_to_the_first_wrong_token(compiler, tokenizer):
    state = compiler.compile(JSON)
    good, wrong = ids(tokenizer, '{"op": "SUM'), ids(tokenizer, "x")
    assert state.accept(good + wrong) == len(good)
    assert state.accept(wrong) == 0
    assert not state.is_complete
    assert state.accept(ids(tokenizer, '"}')) > 0
    assert state.is_complete


def test_rollback_restores_the_state(compiler, tokenizer):
    state = compiler.compile(JSON)
    tokens = ids(tokenizer, '{"op": "COUNT"}')
    for keep in range(len(tokens)):
        state.accept(tokens[:keep])
        before = allowed(state)
        state.accept(tokens[keep:])
        assert state.is_complete
        state.rollback(len(tokens) - keep)
        assert not state.is_complete
        assert allowed(state) == before
        state.rollback(keep)


def test_forced_tokens_are_the_only_text_that_may_follow(compiler, tokenizer):
    state = compiler.compile(JSON)
    forced = state.forced_tokens()
    assert '{"op": "COUNT'.startswith(tokenizer.decode(forced))
    assert len(tokenizer.decode(forced)) > 4
    assert state.accept(forced) == len(forced)
    state.accept(ids(tokenizer, "SUM"))
    assert tokenizer.decode(state.forced_tokens()) in ('"}', '"', "")


def test_the_mask_agrees_with_accept(compiler, tokenizer):
    state = compiler.compile(JSON)
    state.accept(ids(tokenizer, '{"op": "COUNT'))
    permitted = allowed(state)
    for token_id in range(tokenizer.vocab_size):
        count = state.accept([token_id])
        assert count == (token_id in permitted)
        state.rollback(count)
    assert max(permitted) < tokenizer.vocab_size  # rows of padding are never allowed


def test_the_end_token_is_allowed_where_the_text_may_end(compiler, tokenizer):
    state = compiler.compile(LarkConstraint("start: /[a-z]+/"))
    eos = tokenizer.eos_token_ids[0]
    assert eos not in allowed(state)
    state.accept(ids(tokenizer, "abc"))
    assert eos in allowed(state)
    assert not state.is_complete
    assert state.accept([eos]) == 1
    assert state.is_complete


def test_states_of_one_grammar_are_independent(compiler, tokenizer):
    first, second = compiler.compile(JSON), compiler.compile(JSON)
    first.accept(ids(tokenizer, '{"op'))
    third = compiler.find(JSON)
    assert allowed(second) == allowed(third) != allowed(first)


@pytest.mark.parametrize("text", ["start: missing", "", 'start: "a', "start: /(/"])
def test_a_grammar_that_does_not_compile_is_an_error_with_the_reason(compiler, text):
    with pytest.raises(GrammarError, match=r"does not compile: \S+"):
        compiler.compile(LarkConstraint(text))
    assert compiler.find(LarkConstraint(text)) is None


def test_the_most_recently_used_grammars_are_cached(compiler):
    texts = [f'start: "{i}"' for i in range(3)]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        compiler.compile(LarkConstraint(text))
    assert [compiler.find(LarkConstraint(text)) is not None for text in texts] == [True, False, True]


def test_large_grammars_are_evicted_sooner(tokenizer):
    """Compile time is the measure of their memory; the most recent one is always kept."""
    compiler = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, cache_seconds=0.0)
    constraints = [LarkConstraint(f'start: "{i}"') for i in range(3)]
    for constraint in constraints:
        compiler.compile(constraint)
    assert [compiler.find(constraint) is not None for constraint in constraints] == [False, False, True]


def test_compiling_from_several_threads(compiler, tokenizer):
    states = []
    threads = [threading.Thread(target=lambda: states.append(compiler.compile(JSON))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = ids(tokenizer, '{"op": "SUM"}')
    assert [state.accept(text) for state in states] == [len(text)] * 8


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (LarkConstraint("start: /[a-z]+/"), "the grammar"),
        (JsonSchemaConstraint("true"), "the JSON schema"),
    ],
)
def test_rolling_back_more_tokens_than_were_accepted_is_an_error_that_names_the_constraint(compiler, constraint, name):
    with pytest.raises(GrammarError, match=f"^{name} failed after the text so far: "):
        compiler.compile(constraint).rollback(1)


def masks(state, drafts) -> list[set[int]]:
    bitmasks = np.zeros((1 + len(drafts), -(-VOCAB_SIZE // 32)), np.int32)
    state.fill_bitmasks(drafts, bitmasks)
    bits = np.unpackbits(bitmasks.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


@pytest.mark.parametrize("text", ['{"op": "COUNT_DISTINCT"}', '{"op": "SUM', "", '{"op": "MAX"}', '{"op": "SUM"}}}'])
def test_bitmasks_along_drafts_equal_those_after_accepting_them(compiler, tokenizer, text):
    drafts, walker, state = ids(tokenizer, text), compiler.compile(JSON), compiler.compile(JSON)
    expected = [allowed(walker)]
    for draft in drafts:
        if walker.is_complete or not walker.accept([draft]):
            break
        expected.append(allowed(walker))
    found = masks(state, drafts)
    assert found[: len(expected)] == expected
    assert not any(found[len(expected) :]), "nothing may follow a refused token"
    assert allowed(state) == expected[0], "the state is unchanged"
    assert state.accept(drafts) == len(expected) - 1


def test_the_end_token_among_drafts(compiler, tokenizer):
    eos, state = tokenizer.eos_token_ids[0], compiler.compile(LarkConstraint("start: /[a-z]+/"))
    drafts = [*ids(tokenizer, "ab"), eos, *ids(tokenizer, "c")]
    found = masks(state, drafts)
    assert eos in found[len(drafts) - 2], "after ab"
    assert not found[-1] & set(ids(tokenizer, "c")), "no text after the end"
    assert state.accept(drafts[:-1]) == len(drafts) - 1


def test_a_grammar_that_reached_its_limit_is_compiled_again(compiler, tokenizer):
    """Copies share a lexer and the limit of its states; a later copy must not find the limit reached."""
    state = compiler.compile(JSON)
    with pytest.raises(GrammarError):
        state.rollback(1)
    for drafts in ([], ids(tokenizer, '{"op')):
        with pytest.raises(GrammarError):
            masks(state, drafts)
    assert compiler.find(JSON) is None
    assert compiler.compile(JSON).accept(ids(tokenizer, '{"op')) > 0


def changed(tokenizer: Tokenizer, **parts: object) -> Tokenizer:
    content = json.loads(tokenizer.to_json()) | parts
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), eos_token_ids=tokenizer.eos_token_ids)


def follows(tokenizer: Tokenizer, vocab_size: int) -> bool:
    """Whether a grammar over the tokenizer accepts an answer."""
    compiler = GrammarCompiler(tokenizer, vocab_size=vocab_size)
    answer = ids(tokenizer, "the st")
    return compiler.compile(LarkConstraint("start: / ?the st/")).accept(answer) == len(answer)


@pytest.mark.parametrize("make", [byte_level, metaspace, unigram])
def test_a_token_that_was_added_without_logits_is_left_out(make):
    tokenizer = make()
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.add_special_tokens(["[PAD]"])
    padded = Tokenizer(backend, eos_token_ids=tokenizer.eos_token_ids)
    assert padded.vocab_size == tokenizer.vocab_size + 1
    assert follows(padded, tokenizer.vocab_size)


def test_a_metaspace_decoder_is_that_of_sentencepiece():
    decoder = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    tokenizer = changed(metaspace(), decoder=decoder)
    assert follows(tokenizer, tokenizer.vocab_size)


def test_a_tokenizer_of_a_larger_model_is_refused_before_the_first_request(tokenizer):
    with pytest.raises(WeightsError, match=r"has the token id .* and the model has logits for 300 tokens"):
        GrammarCompiler(tokenizer, vocab_size=300)


def test_a_decoder_that_replaces_a_regular_expression_is_refused_by_name():
    replace = {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}
    with pytest.raises(WeightsError, match=r"replaces the regular expression .* convert the tokenizer"):
        changed(metaspace(), decoder={"type": "Sequence", "decoders": [replace]}).token_bytes(40)
