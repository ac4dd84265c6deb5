"""Functions in C that take tensors, each in a network of its own: a script, since one that fails ends its process."""

import json

import torch
from torch import Tensor, nn

from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.traced import trace
from sparsepipe.networks.traced.verification import differences


@torch.jit.script
def scripted(x: Tensor):
    return torch.relu(x) + 1


@torch.jit.script
def scripted_pair(x: Tensor, y: Tensor):
    return x * y.sigmoid()


@torch.jit.script
def scripted_list(xs: list[Tensor]):
    return torch.cat(xs, 1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@torch.library.custom_op("sparsepipe_tests::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return x.sin()


sine.register_fake(torch.empty_like)
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
bound = Doubled.apply  # before anything is traced

FUNCTIONS = {
    "scripted": scripted,
    "scripted, two tensors": lambda x: scripted_pair(x, y=x + 1),
    "scripted, a list": lambda x: scripted_list([x, 2 * x])[:, 1:5],
    "traced by torch": torch.jit.trace(lambda x: x.sin() + 1, torch.randn(2, 4)),
    "autograd, bound early": bound,
    "custom operation": torch.ops.sparsepipe_tests.sine,
    "extension": lambda x: x if torch._C._is_alias_of(x, x) else -x,
    "storage": lambda x: x + torch.empty(0, dtype=x.dtype).set_(x.detach().contiguous().untyped_storage()).view(-1, 4),
    "numpy": lambda x: x + torch.from_numpy(x.detach().numpy().copy()),
    "dlpack": lambda x: x + torch.from_dlpack(x.detach()),
}


class Middle(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


def main():
    for name, function in FUNCTIONS.items():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Middle(function), nn.Linear(4, 2)).double()
        network = trace(module, torch.randn(2, 4).double())
        found = differences(network, torch.randn(3, 4).double(), engine=PlainEngine(), stages=0)
        print(json.dumps([name, [row.id for row in network.rows], [each.what for each in found]]), flush=True)


if __name__ == "__main__":
    main()
