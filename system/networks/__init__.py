"""Layers and front-ends that experts and encoders share."""

COLUMNS_AT_ONCE = 6_000  # of a spectrum, so that memory does not grow with the length of a clip
