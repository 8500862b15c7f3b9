"""Files of the challenge.

The challenge's files: score matrices, ranked CSVs, matrix CSVs, captions that name the relevant clips.
"""
