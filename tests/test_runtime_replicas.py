"""Gradients on their way from one replica to the others: which go together, and when they set out."""

import torch

from sparsepipe.runtime.replication.all_reduce import Averaging


class _Double:
    """A process whose other replica always has the same gradients: sums are twice what is given."""

    def __init__(self) -> None:
        self.set_out: list[int] = []

    def start_sum_over_stage(self, values: torch.Tensor) -> torch.Tensor:
        self.set_out.append(len(values))
        return values.mul_(2)

    def finish_sum(self, work: torch.Tensor, *, what: str) -> None:
        assert what == "averaging 0U0"


def test_gradients_set_out_while_the_backward_goes_on() -> None:
    first, second = (torch.randn(1200, 1000, requires_grad=True) for _ in range(2))  # 4.8 MB: a bucket each
    third = torch.randn(1000, requires_grad=True)
    arrived = torch.randn(3, 1200, requires_grad=True)
    process, told = _Double(), []
    averaging = Averaging([first, second, third], None, process)
    inner = arrived @ first
    inner.register_hook(lambda gradient: told.append(list(process.set_out)))
    output = torch.tanh(inner) @ second.t() @ torch.ones(1200, 1000) + third
    with averaging.watching():
        gradients = torch.autograd.grad(output.sum(), [first, second, third])
    assert told == [[1000, 1_200_000]], "the later layers' were under way when the backward came to the first"
    averaging.complete(gradients)
    for mean, gradient in zip(averaging.mean(4, what="averaging 0U0"), gradients, strict=True):
        torch.testing.assert_close(mean, gradient / 2)  # twice the sum, over four minibatches


def test_what_was_gathered_before_and_what_nobody_used_is_counted() -> None:
    used, unused = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    averaging = Averaging([used, unused], [torch.ones(3), torch.ones(2)], _Double())
    with averaging.watching():
        gradients = torch.autograd.grad((2 * used).sum(), [used, unused], allow_unused=True, materialize_grads=True)
    averaging.complete(gradients)
    means = averaging.mean(2, what="averaging 0U0")
    assert means[0].tolist() == [3, 3, 3] and means[1].tolist() == [1, 1]
    assert torch.autograd.grad((2 * used).sum(), [used])[0].tolist() == [2, 2, 2], "nobody listens any more"
