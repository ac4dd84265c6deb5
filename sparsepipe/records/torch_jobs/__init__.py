"""Traces of torch.profiler (Kineto), one file for each rank of a job, read as one trace."""

from .job import load_torch_trace

__all__ = ["load_torch_trace"]
