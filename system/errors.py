"""What the system room raises when its input is at fault."""


class KitError(ValueError):
    """One sentence: what is wrong, where, and what to do."""
