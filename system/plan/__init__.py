"""Plan of a recipe.

The plan of a recipe: parameters, memory, disk, hours.
"""
