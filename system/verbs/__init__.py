"""Verbs of `python -m system`.

The verbs of `python -m system`, one file each: read arguments, call other modules, print.
"""
