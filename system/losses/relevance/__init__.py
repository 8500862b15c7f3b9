"""CIDEr-D between captions.

CIDEr-D is a similarity of captions by their n-grams. It is computed exactly over all pairs of captions of a corpus, and
fast in every batch, where it lowers the margins of the ranking loss.
"""
