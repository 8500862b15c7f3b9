"""The verbs of `python -m submission`, one file each: arguments in, calls, lines out."""
