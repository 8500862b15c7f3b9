"""All of a recipe in one go, studies of many runs, and their tables."""
