"""JSON, JSON lines, YAML.

Documents as text: JSON, JSON lines, YAML 1.2, and the settings in them.
"""
