"""The verbs of `python -m system`, one file each: arguments in, calls, lines out."""
