"""The challenge side of the kit.

Editions, metrics, score matrices, ranked CSVs, moments, packages and reports. Nothing here needs torch. Of the
project's other folders, this one imports only data_tools.
"""
