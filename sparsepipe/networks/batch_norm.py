"""Synchronised batch norm, of voxels or of dense grids: statistics over several processes."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError

_CACHED_ROWS = 2048


class TooFewVoxels(InputError):
    """A batch norm in training met fewer than two voxels: they have no variance."""


class Group(Protocol):
    """Processes that share statistics. Both collectives wait for all of them, and raise where one is lost or late."""

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return `own` of every process, in rank order."""
        ...

    def sum(self, own: Tensor) -> None:
        """Make `own` the sum over the processes."""
        ...


class GroupBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of rows [N, C] or grids [B, C, ...] whose minibatch, in training, is that of every process of `group`.

    Alone without a group; its state_dict is that of torch's own. Processes may hold different numbers of rows, or none.
    Each must run the same forward and backward passes in the same order. Weight and bias get the gradient of the own
    rows; averaging gradients over the group, as replicas do with all others, completes it.
    """

    group: Group | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        """Take any number of axes: the layers around say how many there are."""

    def forward(self, input: Tensor, group: Group | None = None) -> Tensor:
        """Normalise a minibatch. `group`: processes that hold its other rows, for this call alone."""
        group = group or self.group
        if group is None or not self.training:
            if self.training and input.numel() == input.shape[1]:
                raise TooFewVoxels(
                    "batch_norm.too_few_voxels",
                    "batch norm over 1 voxel: expected at least 2 voxels; use more samples per minibatch or smaller "
                    "voxels; if minibatches are split, a higher memory limit",
                )
            return super().forward(input)
        places = input.movedim(1, -1)
        rows = places.flatten(0, -2)
        output: Tensor
        output, mean, variance, count = _GroupNorm.apply(rows, self.weight, self.bias, self.eps, group)  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            assert self.num_batches_tracked is not None and self.momentum is not None
            assert self.running_mean is not None and self.running_var is not None
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                unbiased = variance * (count / (count - 1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return output.view(places.shape).movedim(-1, 1).contiguous()


class _GroupNorm(torch.autograd.Function):
    """Normalise rows by the mean and variance of those of all processes.

    Every process sends its count, mean and sum of squared deviations, which are merged pairwise-free of cancellation
    (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"), in rank
    order and in double precision: all processes get the same bits.
    """

    @staticmethod
    def forward(ctx, rows, weight, bias, epsilon, group):  # type: ignore[no-untyped-def]
        wide = rows if rows.dtype == torch.float64 else rows.float()
        channels = rows.shape[1]
        mean, squares = _mean_and_squares(wide)
        own = torch.cat([mean.double(), squares.double(), mean.new_tensor([len(rows)]).double()])
        means, squares, counts = torch.stack(group.gather(own)).split([channels, channels, 1], dim=1)
        count = float(counts.sum())
        if count < 2:
            raise TooFewVoxels(
                "batch_norm.too_few_voxels",
                f"batch norm over {count:.0f} voxels in all processes: expected at least 2 voxels; use more "
                "samples per minibatch or smaller voxels",
            )
        mean = (means * counts).sum(0) / count
        variance = (squares.sum(0) + ((means - mean).square() * counts).sum(0)) / count
        scale = (variance + epsilon).rsqrt()
        mean, scale = mean.to(wide.dtype), scale.to(wide.dtype)
        factor = scale * weight.to(wide.dtype)
        output = torch.addcmul(bias.to(wide.dtype) - mean * factor, wide, factor)
        ctx.save_for_backward(rows, weight, mean, scale)
        ctx.group, ctx.count = group, count
        ctx.mark_non_differentiable(mean, variance)
        return output.to(rows.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, *_):  # type: ignore[no-untyped-def]
        rows, weight, mean, scale = ctx.saved_tensors
        gradient = grad_output.to(mean.dtype)
        normal = (rows.to(mean.dtype) - mean).mul_(scale)
        own = torch.stack([gradient.sum(0), (gradient * normal).sum(0)])
        grad_bias, grad_weight = own.clone().to(weight.dtype)
        ctx.group.sum(own)
        along, across = own / ctx.count
        factor = scale * weight.to(mean.dtype)
        grad_rows = torch.addcmul(-along * factor, gradient, factor).addcmul_(normal, -across * factor)
        return grad_rows.to(rows.dtype), grad_weight, grad_bias, None, None


def _mean_and_squares(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of rows [N, C] and their sum of squared deviations from it, [C] each; zeros of no rows."""
    if not len(rows):
        return rows.new_zeros(rows.shape[1]), rows.new_zeros(rows.shape[1])
    mean = rows.sum(dim=0) / len(rows)
    if rows.device.type != "cpu":
        return mean, (rows - mean).square_().sum(dim=0)
    squares = torch.zeros_like(mean)
    for some in rows.split(_CACHED_ROWS):  # so that deviations do not leave the cache: a third of var_mean's time
        squares += (some - mean).square_().sum(dim=0)
    return mean, squares
