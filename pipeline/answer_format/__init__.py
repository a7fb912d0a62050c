"""Derives from example answers how a model writes its JSON."""
