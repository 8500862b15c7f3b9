"""The package to submit.

Make the package to submit, a zip archive with meta.yaml, from the participant's about.yaml and from finished runs.
"""
