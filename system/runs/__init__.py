"""A run's folder, its checkpoints, and its trained model."""
