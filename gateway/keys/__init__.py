"""API keys of the door: who may call it, how often, and whose predictions are whose."""
