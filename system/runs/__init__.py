"""Run folders.

A run's folder, its checkpoints, and the uses of a trained model.
"""
