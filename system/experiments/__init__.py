"""Run recipes and studies.

Run a recipe with all its steps, run studies of many recipes, and write their tables.
"""
