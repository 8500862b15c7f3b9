"""Models from and for other programs."""
