"""Recorded files of a run.

Files with the settings and results of a run. `system` writes them; packages and reports read them.
"""
