"""Audio files: decoded in blocks within bounds, resampled as the experts want it."""
