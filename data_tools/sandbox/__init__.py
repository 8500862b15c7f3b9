"""Stand-in for Freesound.

A stand-in for Freesound on this machine: the same API, with invented sounds.
"""
