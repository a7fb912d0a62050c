"""The Honeycomb task: from a question and column names to a Honeycomb query.

All steps of an example, with a model's text in the middle:

    >>> from tasks.honeycomb.columns import parse_columns
    >>> from tasks.honeycomb.grammar import build_grammar
    >>> from tasks.honeycomb.prompt import build_prompt, check_nlq
    >>> from tasks.honeycomb.query import read_answer

    >>> columns = parse_columns("['duration_ms', 'name', 'trace.parent_id']")
    >>> prompt = build_prompt(check_nlq("slowest traces"), columns, "columns-first")
    >>> print(prompt)
    Honeycomb is an observability platform. Write the Honeycomb query that answers the question, \
using only the columns given.
    <BLANKLINE>
    ### Columns:
    ['duration_ms', 'name', 'trace.parent_id']
    <BLANKLINE>
    ### NLQ:
    "slowest traces"
    <BLANKLINE>
    ### Response:
    <BLANKLINE>

    >>> grammar = build_grammar(columns, "json")  # for the engine: the model can write only queries
    >>> written = (
    ...     '{"filters": [{"column": "trace.parent_id", "op": "does-not-exist"}], '
    ...     '"calculations": [{"op": "MAX", "column": "duration_ms"}], "breakdowns": ["name"], '
    ...     '"orders": [{"op": "MAX", "column": "duration_ms", "order": "descending"}, '
    ...     '{"op": "P99", "column": "duration_ms", "order": "descending"}], "time_range": 7200}'
    ... )
    >>> answer = read_answer(written, columns)
    >>> print(answer.text.replace("], ", "],\\n "))
    {"breakdowns": ["name"],
     "calculations": [{"op": "MAX", "column": "duration_ms"}],
     "filters": [{"column": "trace.parent_id", "op": "does-not-exist"}],
     "orders": [{"op": "MAX", "column": "duration_ms", "order": "descending"}]}
    >>> answer.repairs
    ('orders[1] dropped: P99(duration_ms) is not calculated',)
"""
