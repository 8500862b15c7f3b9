"""The challenge side of the kit.

Editions, metrics, score matrices, ranked CSVs, and their checks.

Ranked CSVs need no library except numpy. Of the project's other folders, this one imports only data_tools.
"""
