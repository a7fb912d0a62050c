"""Checks and compiles constraints as llguidance grammars.

text = check_constraint(constraint)  # for vLLM
matcher = compile_constraint(constraint, tokenizer)  # for the other engines
fault = TextCheck(constraint).fault(text)  # for an answer that somebody else wrote
"""

from serving.grammar.grammar_text import separator_error
from serving.grammar.guard import TextCheck, answer_checks, check_constraint, compile_constraint

__all__ = ["TextCheck", "answer_checks", "check_constraint", "compile_constraint", "separator_error"]
