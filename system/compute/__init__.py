"""Devices, and several processes.

The devices of this machine, and several processes that compute one result.
"""
