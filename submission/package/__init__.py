"""The package to submit, from about.yaml and finished runs."""
