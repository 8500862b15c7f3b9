"""Verbs of `python -m submission`.

One file per verb of `python -m submission`: it defines the arguments, calls functions, and prints the result.
"""
