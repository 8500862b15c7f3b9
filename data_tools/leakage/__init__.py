"""Find overlaps with test data.

Leakage: overlaps of training data with test splits, and Freesound ids that a challenge forbids.
"""
