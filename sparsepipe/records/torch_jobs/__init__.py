"""Traces of torch.profiler (Kineto), one file for each rank of a job, read as one trace."""

from .events import is_from_torch
from .job import load_torch_trace

__all__ = ["is_from_torch", "load_torch_trace"]
