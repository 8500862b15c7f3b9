"""Models from and for other programs: exports, conversions, sentence-transformers, mteb, the Hugging Face hub."""
