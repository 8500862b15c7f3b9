"""The challenge side of the kit.

Editions, metrics, score matrices, ranked CSVs, and their checks.

Scores and checks need no libraries but numpy, pydantic, PyYAML and typer. Of the project's other folders, this one
imports only data_tools.
"""
