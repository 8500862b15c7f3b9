"""Readers of published data sets and of your own folders."""
