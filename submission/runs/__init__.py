"""Files of a run, which `system` writes and others read."""
