"""The challenge's side of the kit: editions, metrics, score matrices, ranked CSVs, and their checks.

Works with numpy alone on ranked CSVs; imports no other room.
"""
