"""Read and write parquet files, tars and zips.

Reads and writes data sets in the formats of the Hugging Face hub.
"""
