"""Verbs of `lbar`.

Each verb of `lbar` is one file. It reads the arguments, calls other modules, and prints the result.
"""
