"""Descriptions scored by their similarity to captions."""
