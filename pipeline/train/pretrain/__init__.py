"""Pretraining of draft models: synthetic tasks of many forms, from which a draft model learns copying and JSON."""
