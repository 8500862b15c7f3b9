"""Devices of this machine, and processes that compute one result."""
