"""Measuring answers: validity, components, exact match, and what a query finds when it is run."""
