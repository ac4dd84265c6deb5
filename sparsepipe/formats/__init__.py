"""File formats of other systems (PipeDream's, SparsePipe's), and stages exported as Python modules."""
