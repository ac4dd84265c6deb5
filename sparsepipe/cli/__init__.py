"""The `sparsepipe` command: its words, its verbs by groups, and what they print."""

from .command import main

__all__ = ["main"]
