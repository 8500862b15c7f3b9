"""Metrics, intervals, tests, blends.

Compute metrics (mAP@k, recall, R1 of moments), confidence intervals and paired tests, and blend score matrices.
"""
