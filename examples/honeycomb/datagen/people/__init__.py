"""Generate questions as people type them, about the columns that teams have.

A meaning is sampled first (`meaning.py`). Then one of several surfaces writes it: English, a search box, SQL, PromQL,
NRQL or a pipeline. Column lists are in `teams*.txt`, public conventions in `conventions.tsv`.
"""
