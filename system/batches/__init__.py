"""Batches: their items, random changes, and tensors."""
