"""The clips a recipe names, which of them make a batch, and its tensors."""
