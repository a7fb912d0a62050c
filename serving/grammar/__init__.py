"""Checks and compiles constraints as llguidance grammars.

text = check_constraint(constraint)  # for vLLM
matcher = compile_constraint(constraint, tokenizer)  # for the other engines
"""

from serving.grammar.compiled import check_constraint, compile_constraint
from serving.grammar.json_separators import separator_error

__all__ = ["check_constraint", "compile_constraint", "separator_error"]
