"""Metrics, confidence intervals, paired tests, blends of score matrices."""
