"""Frames of frozen experts: banks on disk, and their computation."""
