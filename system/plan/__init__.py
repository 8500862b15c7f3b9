"""Plan of a recipe.

Make the plan of a recipe: its estimated parameters, memory, disk space and hours, and its missing files.
"""
