"""Verbs of `lbar submit`.

One file per verb of `lbar submit`: it defines the arguments, calls functions, and prints the result.
"""
