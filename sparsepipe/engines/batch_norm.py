"""Batch norm over several processes, for the engines' own layers: it is `sparsepipe.batch_norm`."""

from ..batch_norm import Group, GroupBatchNorm, TooFewVoxels

__all__ = ["Group", "GroupBatchNorm", "TooFewVoxels"]
