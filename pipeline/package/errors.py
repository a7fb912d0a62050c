"""The error that is raised when a package cannot be made."""


class PackageError(Exception):
    """A package cannot be made from what the user gave; the message names the problem and the remedy."""
