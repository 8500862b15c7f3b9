"""Captions to embeddings: the closed list of text encoders, one file each."""
