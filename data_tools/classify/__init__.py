"""Classify descriptions.

Classification of descriptions by their similarity to captions: clean, embed, classify, report.
"""
