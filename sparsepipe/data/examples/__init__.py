"""Data sets of examples: images, texts, a user's own. An example is what a network's forward takes, with its target."""

from .base import ExampleBatch, ExampleDataset

__all__ = ["ExampleBatch", "ExampleDataset"]
