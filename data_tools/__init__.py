"""Manifests of audio-caption data sets, and the tools that make, check and compose them."""
