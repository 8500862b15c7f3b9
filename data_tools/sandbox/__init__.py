"""Stand-in for Freesound.

Simulates Freesound on this machine: the same API, with invented sounds.
"""
