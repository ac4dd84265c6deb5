"""Numbers and counts in words, for sentences and tables."""
