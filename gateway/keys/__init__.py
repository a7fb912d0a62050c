"""API keys of the gateway: who may call it, how often, and whose predictions are whose."""
