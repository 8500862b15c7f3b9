"""The loss terms.

A new one is a class in terms.py, or a file in this folder and its import here.
"""

from system.losses.terms import Term as Term
