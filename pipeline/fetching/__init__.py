"""Checkpoints and adapters from a model hub, plain https or a folder, checked and complete."""
