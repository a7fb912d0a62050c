"""Errors of evaluation."""


class AdapterFolderError(Exception):
    """A folder has no adapter; the message says what to do."""
