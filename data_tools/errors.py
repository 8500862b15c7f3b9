"""The one exception of this room."""


class DataError(ValueError):
    """Data that cannot be used. The message is one sentence: what is wrong, where, and what to do."""
