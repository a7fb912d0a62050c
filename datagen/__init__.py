"""The training data: column lists, questions and the canonical queries that answer them.

Owns: vocabularies (`vocab/*.txt`), phrasings (`phrases/*.txt`), and the code that samples a meaning,
writes it down as a query and says it in words. Knows nothing of models or engines. Use:
`scripts/make_data --out build/data`.
"""
