"""Planners as their papers describe them, to compare with: PipeDream's and SparsePipe's."""
