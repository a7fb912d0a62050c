"""What can be wrong with an adapter. Apart, so that it can be caught without importing torch."""

from __future__ import annotations


class AdapterError(Exception):
    """An adapter does not fit; the message says what to change."""
