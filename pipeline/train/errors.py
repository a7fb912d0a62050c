"""The error of the training pipeline, in a module that does not import torch."""

from __future__ import annotations


class TrainingError(Exception):
    """An adapter, a draft model or training data cannot be used; the message says what to change."""


class NoDraftsError(TrainingError):
    """The prompts are of a kind that no draft model can read; the message says why."""
