"""Banks of frames.

Frames of frozen experts: banks on disk, and the computation of missing frames.
"""
