"""A run's folder, its checkpoints, and what is done with a trained model."""
