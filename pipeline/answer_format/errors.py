"""The error that is raised for unusable example answers."""


class ExamplesError(Exception):
    """The examples cannot be read, or no constraint allows their form; the message says what to change."""
