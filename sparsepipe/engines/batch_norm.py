"""Batch norm over several processes, for the engines' own layers: it is `sparsepipe.networks.batch_norm`."""

from ..networks.batch_norm import Group, GroupBatchNorm, TooFewVoxels

__all__ = ["Group", "GroupBatchNorm", "TooFewVoxels"]
