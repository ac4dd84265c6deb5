"""Traces of torch.profiler (Kineto), one file for each rank of a job, read as one trace."""
