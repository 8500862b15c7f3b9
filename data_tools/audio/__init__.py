"""Read audio.

Audio files: decodes them in blocks within limits, and resamples them for the experts.
"""
