"""The one exception of this room."""


class SubmissionError(ValueError):
    """One sentence: what is wrong, where, and what to do about it."""
