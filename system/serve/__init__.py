"""The search page: type a sentence, hear the clips that a trained model finds for it."""
