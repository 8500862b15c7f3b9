"""Retrieval models: audio encoders, text encoders, scores of embeddings."""
