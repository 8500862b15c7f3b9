"""What is wrong with what is handed in or scored."""

from data_tools.errors import KitError


class SubmissionError(KitError):
    """A file, a figure or a package that cannot be made, read or scored."""
