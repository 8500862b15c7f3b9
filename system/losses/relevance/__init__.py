"""CIDEr-D between captions.

CIDEr-D between captions: exact over all pairs of a corpus, fast in every batch, for relaxing the ranking loss.
"""
