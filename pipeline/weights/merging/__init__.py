"""Merge LoRA adapters into checkpoints, one block of rows in memory at a time."""
