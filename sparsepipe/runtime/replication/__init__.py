"""How the replicas of a stage stay in the same way: what they average, with whom and when."""
