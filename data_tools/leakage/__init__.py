"""What training data shares with a test split, and what a challenge forbids."""
