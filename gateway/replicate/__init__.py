"""Replicate's HTTP API, as far as its official clients need it."""

from gateway.replicate.routes import REPLICATE

__all__ = ["REPLICATE"]
