"""Generate the training data: column lists, questions about them, and the canonical queries that answer them.

For each question a meaning is sampled, written as a query, and expressed in words. Column vocabularies are in
`vocab/*.txt`, phrase templates in `phrases/*.txt`. `scripts/dev/make_data --out build/data` runs it.
"""
