"""Crawl Freesound, and fetch chosen sounds."""
