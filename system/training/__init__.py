"""Stages: steps, rates, validation, early ends, the collapse watch."""
