"""Read audio files.

Decodes audio files block by block, within limits of size, and resamples them to the rate of each expert.
"""
