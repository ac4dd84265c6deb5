"""Gradients on their way from one replica to the others: which go together, and when they set out."""

import torch

from sparsepipe.runtime.replication.all_reduce import AllReduce, Averaging
from sparsepipe.runtime.replication.base import Alone


class _Double:
    """A group whose other replica always has the same gradients: sums are twice what is given."""

    def __init__(self) -> None:
        self.set_out: list[int] = []

    def start_sum(self, values: torch.Tensor) -> torch.Tensor:
        self.set_out.append(len(values))
        return values.mul_(2)

    def sum(self, values: torch.Tensor, *, what: str) -> torch.Tensor:
        return self.start_sum(values)

    def finish(self, work: torch.Tensor, *, what: str) -> None:
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
    assert told == [[1001, 1_200_001]], "the later layers' were under way when the backward came to the first"
    averaging.complete(gradients)
    for mean, gradient in zip(averaging.mean(4, what="averaging 0U0"), gradients, strict=True):
        torch.testing.assert_close(mean, gradient / 2)  # twice the sum, over four minibatches


def test_what_was_gathered_before_and_what_nobody_used_is_counted() -> None:
    used, unused = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    averaging = Averaging([used, unused], [torch.ones(3), torch.ones(2)], _Double())
    with averaging.watching():
        gradients = torch.autograd.grad((2 * used).sum(), [used, unused], allow_unused=True)
    averaging.complete(gradients)
    means = averaging.mean(2, what="averaging 0U0")
    assert means[0].tolist() == [3, 3, 3] and means[1].tolist() == [1, 1]
    assert torch.autograd.grad((2 * used).sum(), [used])[0].tolist() == [2, 2, 2], "nobody listens any more"


def test_replicas_come_to_the_mean_of_their_round_however_gradients_set_out() -> None:
    """Three minibatches a replica, of which the last sets out within its backward, or all of them after it."""
    weight = torch.randn(4, requires_grad=True)
    gathered, last = torch.randn(4), torch.randn(4)
    early, late = (AllReduce(_Double(), num_replicas=2) for _ in range(2))
    with early.overlap([weight], [gathered]):
        gradients = torch.autograd.grad(weight @ last, [weight])
    early.complete(gradients)
    (first,) = early.mean([weight], lambda: [], 6, what="averaging 0U0")
    (second,) = late.mean([weight], lambda: [gathered + last], 6, what="averaging 0U0")
    (alone,) = Alone().mean([weight], lambda: [gathered + last], 3, what="0U0")
    torch.testing.assert_close(first, (gathered + last) / 3)
    torch.testing.assert_close(second, first)
    torch.testing.assert_close(alone, first)


def test_a_weight_that_one_replica_reaches_gets_the_mean_and_one_that_none_reaches_gets_none() -> None:
    """The other replica's loss reaches the second weight alone."""

    class Other(_Double):
        def start_sum(self, values: torch.Tensor) -> torch.Tensor:
            return values.add_(torch.tensor([0.0, 0.0, 8.0, 8.0, 0.0, 0.0, 0.0, 1.0, 0.0]))

    first, second, third = torch.ones(2), torch.ones(2), torch.ones(2)
    averaging = Averaging([third, second, first], None, Other())
    averaging.complete([None, None, torch.full((2,), 4.0)])
    none, one, other = averaging.mean(2, what="averaging 0U0")
    assert none is None and one is not None and other is not None
    assert one.tolist() == [4, 4] and other.tolist() == [2, 2]


def test_replicas_of_a_stage_without_weights_meet_all_the_same() -> None:
    group = _Double()
    assert AllReduce(group, num_replicas=2).mean([], lambda: [], 2, what="averaging 0U0") == []
    assert group.set_out == [1]


def test_running_statistics_become_their_mean_by_shares() -> None:
    running, count = torch.full((3,), 5.0), torch.tensor(7)
    AllReduce(_Double(), num_replicas=2).average_buffers([running, count], 0.5)
    assert running.tolist() == [5.0] * 3 and count.item() == 7
    Alone().average_buffers([running], 1.0)
    assert running.tolist() == [5.0] * 3
