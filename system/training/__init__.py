"""Training.

Training of stages: steps, learning rates, validation, early stopping, detection of collapse.
"""
