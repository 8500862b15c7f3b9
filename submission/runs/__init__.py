"""Recorded files of a run.

The recorded files of a run: written by the system, read by the package and the report.
"""
