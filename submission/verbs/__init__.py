"""Verbs of `python -m submission`.

The verbs of `python -m submission`, one file each: they read arguments, call functions, and print lines.
"""
