"""Kinds of rank entries.

A new one is a class in entries.py, or a file in this folder and its import here.
"""

from system.ranking.entries import RankEntry as RankEntry
