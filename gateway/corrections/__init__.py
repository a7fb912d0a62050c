"""Corrections: what people say of answers, kept until somebody deletes them."""
