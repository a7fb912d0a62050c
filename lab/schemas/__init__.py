"""Measures which JSON Schemas are accepted, and whether their grammars allow valid answers only; see `measure`."""
