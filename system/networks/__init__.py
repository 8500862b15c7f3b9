"""Layers and front-ends that experts and encoders share."""

COLUMNS_AT_ONCE = 6_000  # columns of a spectrum; this limit keeps memory independent of the length of a clip
