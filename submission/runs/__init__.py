"""Recorded files of a run.

The files in which a run records its settings and results. `system` writes them; packages and reports read them.
"""
