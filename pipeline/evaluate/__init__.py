"""Evaluates the answers of a model or of an adapter, in the way of its task."""
