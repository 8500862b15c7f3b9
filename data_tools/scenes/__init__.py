"""Compose captioned scenes.

Captioned scenes of synthetic or recorded sound events, laid out like Clotho.
"""
