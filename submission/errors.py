"""Errors raised for invalid submissions and scores."""

from data_tools.errors import KitError


class SubmissionError(KitError):
    """A file, figure or package cannot be made, read or scored."""
