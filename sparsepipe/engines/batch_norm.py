"""Batch norm over several processes, for the engines' own layers: it is `sparsepipe.models.batch_norm`."""

from ..models.batch_norm import Group, GroupBatchNorm, TooFewVoxels

__all__ = ["Group", "GroupBatchNorm", "TooFewVoxels"]
