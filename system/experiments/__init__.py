"""Run recipes and studies, and use trained models."""
