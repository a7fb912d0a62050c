"""Errors of making and serving a package."""


class PackageError(Exception):
    """A package cannot be made from what the user gave; the message names the problem and the remedy."""


class PortError(Exception):
    """A server cannot listen where it should; the message names the port and the remedy."""
