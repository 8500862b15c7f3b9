"""Training of stages: steps, learning rates, validation, early stopping."""
