"""Readers of data sets.

Readers of published data sets and of your own folders, one file each; they make manifests.
"""
