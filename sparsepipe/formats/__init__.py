"""Files of other systems and for people: PipeDream's, SparsePipe's, and stages as Python modules."""
