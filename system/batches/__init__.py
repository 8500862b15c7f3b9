"""Batches: choose their clips and captions, change them at random, and make their tensors."""
