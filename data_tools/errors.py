"""The errors of the kit: one tree. The text of each is a sentence (or several, a line each) for the user."""


class KitError(ValueError):
    """What is wrong, where, and what to do."""


class DataError(KitError):
    """Data, or a file, that cannot be used."""
