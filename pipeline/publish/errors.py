"""The error of publishing."""


class PublishError(Exception):
    """What was given cannot be published; the message names it and says what to do."""
