"""The package that is handed in: what a participant says of it, the runs' own facts, meta.yaml, and the archive."""
