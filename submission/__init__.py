"""The challenge side of the kit: editions, metrics, score matrices, ranked CSVs, and their checks.

Ranked CSVs need numpy only. Imports of the other floors: only data_tools.
"""
