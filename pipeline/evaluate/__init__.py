"""Evaluate answers: validity, components, exact match, and the results of running a query."""
