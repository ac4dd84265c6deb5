"""How the replicas of a stage stay consistent: what they average, with whom and when."""
