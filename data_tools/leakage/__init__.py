"""Leakage: overlaps of training data with test splits, and Freesound ids that a challenge forbids."""
