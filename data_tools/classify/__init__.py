"""Which descriptions read like captions: clean, embed, classify, report."""
