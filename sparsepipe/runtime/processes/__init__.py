"""A worker process among the others: who it is, whether the others still live, and how it ends."""
