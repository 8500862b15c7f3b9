"""Terms of the loss, the negatives they take, and the relevance of captions by CIDEr-D."""
