"""Train LoRA adapters and draft models."""
