"""Schema of recipes, and a reader that reports all mistakes."""
