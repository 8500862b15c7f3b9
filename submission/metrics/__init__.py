"""Metrics, intervals, tests, blends.

Figures: mAP@k, recalls, intervals, paired tests, and of several score matrices one.
"""
