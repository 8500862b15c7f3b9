"""Captioned scenes of synthetic or recorded sounds, laid out like Clotho."""
