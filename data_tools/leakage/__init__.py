"""Find overlaps with test data.

Finds overlaps of training data with test splits, and Freesound ids that a challenge forbids.
"""
