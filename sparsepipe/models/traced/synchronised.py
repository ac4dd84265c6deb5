"""Batch norms of a traced stage that share their statistics with the stage's other processes."""

from typing import Any

from torch import nn

from ..batch_norm import GroupBatchNorm

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, GroupBatchNorm)


def synchronise(stage: nn.Module, group: Any) -> int:
    """Give `group` to every batch norm of a stage that has weights; return how many there are.

    Each becomes a GroupBatchNorm, which is torch's own where there is no group.
    """
    norms = [module for module in stage.modules() if type(module) in _NORMS and module.weight is not None]
    for norm in norms:
        norm.__class__ = GroupBatchNorm
        norm.group = group
    return len(norms)
