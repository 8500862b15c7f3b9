"""Recipes.

Recipes: their schema, and a reader that reports every mistake.
"""
