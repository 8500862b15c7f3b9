"""Clips to embeddings: the closed list of audio encoders, one file each."""
