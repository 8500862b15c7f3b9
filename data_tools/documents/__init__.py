"""JSON, JSON lines, YAML.

Reads and writes text documents: JSON, JSON lines, YAML 1.2, and settings in these formats.
"""
