"""The package to submit.

The package to submit: about.yaml of the participant, facts of the runs, meta.yaml, and the archive.
"""
