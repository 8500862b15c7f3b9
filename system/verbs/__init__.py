"""Verbs of `python -m system`.

Each verb of `python -m system` is one file. It reads the arguments, calls other modules, and prints the result.
"""
