"""Replicas of one stage: their gradients averaged, their batch-norm statistics brought together."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .process import Process


def average_gradients(
    gradients: Sequence[Tensor], num_minibatches: int, process: Process, *, what: str
) -> list[Tensor]:
    """Return the mean gradient of a round: the sum over all replicas by the round's number of minibatches.

    A replica that had no minibatch brings zeros. So each minibatch weighs the same, whatever the shares.
    """
    if process.stage_group is None:
        if num_minibatches > 1 and gradients:
            torch._foreach_div_(list(gradients), num_minibatches)
        return list(gradients)
    if not gradients:
        return []
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    process.sum_over_stage(flat, what=what)
    if num_minibatches > 1:
        flat.div_(num_minibatches)
    parts = flat.split([gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


@torch.no_grad()
def average_statistics(module: nn.Module, share: float, process: Process) -> None:
    """Bring the running statistics of a stage's replicas together, weighted by their shares of the minibatches.

    `share` is this replica's; all shares of the stage sum to 1.
    """
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    if process.stage_group is None or not buffers:
        return
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers]).mul_(share)
    process.sum_over_stage(flat, what="averaging of batch-norm statistics")
    for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


def clip(gradients: Sequence[Tensor], most: float, process: Process, *, replicas: int) -> None:
    """Scale the gradients of all stages together, in place, so that their norm over the network is `most` at most.

    Every rank comes here in every step; replicas of a stage hold the same gradients and count once.
    """
    own = sum((gradient.double().square().sum() for gradient in gradients), torch.zeros((), dtype=torch.float64))
    norm = float(process.sum((own / replicas).reshape(1), what="norm of the gradients").sqrt())
    if gradients and norm > most:
        torch._foreach_mul_(list(gradients), most / norm)
