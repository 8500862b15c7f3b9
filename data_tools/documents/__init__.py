"""Documents as text: JSON, JSON lines, YAML 1.2, and settings that are read from them."""
