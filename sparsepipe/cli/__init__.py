"""The `sparsepipe` command line: its arguments, its verbs, and their output."""

from .command import main

__all__ = ["main"]
