"""Crawl and fetch from Freesound.

Freesound: its API, the store of descriptions, and the audio that is fetched.
"""
