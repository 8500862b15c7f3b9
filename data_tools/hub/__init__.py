"""Parquet files, tars and zips.

Data sets as the Hugging Face hub keeps them.
"""
