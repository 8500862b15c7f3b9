"""What other libraries see of a model: sentence-transformers, mteb, the Hugging Face hub."""
