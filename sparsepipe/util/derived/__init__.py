"""What is worked out of values by a rule: their digests, seeds of what is drawn for them, answers kept next to them."""
