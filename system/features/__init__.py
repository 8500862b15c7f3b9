"""Frames of frozen experts: banks on disk, and computing what they lack."""
