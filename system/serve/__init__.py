"""The page on which a trained model searches clips."""
