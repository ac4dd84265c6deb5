"""How the replicas of a stage stay alike: what they average, with whom and when."""
