"""What a run reports of itself: spans of its trace, rows of metrics, memory, load, and the clock that all share."""
