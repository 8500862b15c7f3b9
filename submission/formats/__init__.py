"""Files of the challenge.

Files that are submitted (ranked CSVs, matrix CSVs, moments), score matrices, and the truth to compare them with.
"""
