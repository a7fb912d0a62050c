"""The errors of an endurance run that are not the server's losses."""


class ServerFailedError(Exception):
    """A server did not start, or did not do what every server does; the message has the end of its log."""
