"""This machine as its operating system describes it: processors, memory, limits, and load by other processes."""
