"""CIDEr-D between captions: exact over all pairs of a corpus, fast in every batch, and what it relaxes."""
