"""Optimizers step like torch's own; weight versions live exactly as long as somebody uses them."""

import pytest
import torch
from coded import raises

from sparsepipe.runtime import OptimizerConfig
from sparsepipe.runtime.training_state.optimizer import SGD, Optimizer
from sparsepipe.runtime.training_state.parameter_groups import open_optimizer
from sparsepipe.runtime.training_state.weights import Weights

SHAPES = ((3, 4), (5,), ())


def optimizer(name: str, **settings: float) -> Optimizer:
    return open_optimizer(OptimizerConfig(optimizer=name, **settings), {"a": torch.zeros(1)})


def _tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


REFERENCES = {
    "sgd": lambda tensors, momentum, decay: torch.optim.SGD(
        tensors, lr=0.1, momentum=momentum, weight_decay=decay, foreach=False
    ),
    "adam": lambda tensors, momentum, decay: torch.optim.Adam(tensors, lr=0.1, weight_decay=decay, foreach=False),
    "adamw": lambda tensors, momentum, decay: torch.optim.AdamW(tensors, lr=0.1, weight_decay=decay, foreach=False),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_optimizers_are_torchs(name: str, momentum: float, decay: float) -> None:
    ours, weights = optimizer(name, momentum=momentum, weight_decay=decay), _tensors(0)
    theirs = _tensors(0)
    reference = REFERENCES[name](theirs, momentum, decay)
    for step in range(1, 5):
        gradients = _tensors(step)
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = gradient.clone()
        reference.param_groups[0]["lr"] = 0.1 / step
        reference.step()
        ours.step(weights, gradients, 0.1 / step)
        for a, b in zip(weights, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["gradients", "weights"])
@pytest.mark.parametrize("name", [*REFERENCES, "lamb"])
def test_the_layout_in_memory_changes_nothing(name: str, layout: str) -> None:
    """Gradients of convolutions come with channels last at times: torch's fused kernels took them for others' elements,
    and convolutional networks learned more slowly than in a plain loop."""
    draw = torch.Generator().manual_seed(0)
    plain, *gradients = (torch.randn(8, 4, 5, 5, generator=draw) for _ in range(4))
    last = {"memory_format": torch.channels_last}
    other = plain.clone(**last) if layout == "weights" else plain.clone()
    first, second = (optimizer(name, momentum=0.9, weight_decay=0.1) for _ in range(2))
    for step, gradient in enumerate(gradients):
        first.step([plain], [gradient], 0.1)
        second.step([other], [gradient.clone(**last) if layout == "gradients" else gradient], 0.1)
        torch.testing.assert_close(other, plain, rtol=1e-5, atol=1e-6)
        if step == 1:  # a checkpoint keeps no layout
            state = {key: tensor.contiguous() for key, tensor in second.state(["a"]).items()}
            second = optimizer(name, momentum=0.9, weight_decay=0.1)
            second.load(["a"], state)


# By step: which of three weights the loss reaches. The last is reached late, the first not in every step.
REACHED = ((True, True, False), (False, True, False), (True, True, True), (True, False, True), (False, False, False))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_weight_without_a_gradient_is_not_stepped(name: str, momentum: float) -> None:
    """As in torch.optim, to the bit: decay and momentum move no weight that the loss does not reach.

    Each weight has an optimizer of its own: torch's fused SGD takes no weights of which some have a velocity.
    """
    ours, weights, theirs = optimizer(name, momentum=momentum, weight_decay=0.1), _tensors(0), _tensors(0)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    options = {"lr": 0.1, "weight_decay": 0.1, "fused": True} | ({"momentum": momentum} if name == "sgd" else {})
    references = [kind([tensor], **options) for tensor in theirs]
    for step, reached in enumerate(REACHED):
        gradients = [g if there else None for g, there in zip(_tensors(step + 1), reached, strict=True)]
        for tensor, gradient in zip(theirs, gradients, strict=True):
            tensor.grad = None if gradient is None else gradient.clone()
        for reference in references:
            reference.step()
        ours.step(weights, gradients, 0.1)
        assert all(torch.equal(a, b) for a, b in zip(weights, theirs, strict=True))
        again = optimizer(name, momentum=momentum, weight_decay=0.1)
        again.load(["a", "b", "c"], ours.state(["a", "b", "c"]))
        ours = again


def test_lamb_leaves_a_weight_without_a_gradient() -> None:
    """Each weight counts its own steps: one that is reached late steps as it would alone."""
    ours, alone = (optimizer("lamb", momentum=0.0, weight_decay=0.1) for _ in range(2))
    (first, late, _), (_, single, _) = _tensors(0), _tensors(0)
    ours.step([first, late], [_tensors(1)[0], None], 0.1)
    assert torch.equal(late, single)
    ours.step([first, late], _tensors(2)[:2], 0.1)
    alone.step([single], [_tensors(2)[1]], 0.1)
    assert torch.equal(late, single)


def test_gradients_of_a_round_add_up_where_there_are_any() -> None:
    weights = Weights({name: torch.ones(1) for name in "abc"}, SGD(momentum=0.0, weight_decay=0.5))
    weights.accumulate([torch.ones(1), None, None])
    weights.accumulate([torch.ones(1), torch.ones(1), None])
    gathered = weights.take_gradients()
    assert [gradient if gradient is None else gradient.item() for gradient in gathered] == [2, 1, None]
    weights.update(gathered, 1.0)
    assert [tensor.item() for tensor in weights.newest.tensors.values()] == [-1.5, -0.5, 1.0]
    assert weights.take_gradients() == [None, None, None], "this replica had no minibatch"


def test_lamb_is_its_papers_formula() -> None:
    """You et al., algorithm 2, written out for one tensor in double precision."""
    decay, rate, (first, second) = 0.01, 0.1, (0.9, 0.999)
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, mean, square = weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
    ours = optimizer("lamb", momentum=0.0, weight_decay=decay)
    for step in range(1, 4):
        gradient = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        ours.step([weight], [gradient], rate)
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        ratio = mean / (1 - first**step) / ((square / (1 - second**step)).sqrt() + 1e-6) + decay * expected
        expected = expected - rate * expected.norm() / ratio.norm() * ratio
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb", "lion"])
def test_optimizers_go_on_from_their_state(name: str) -> None:
    names = ["a", "b", "c"]
    first, second = (optimizer(name, momentum=0.9, weight_decay=0.1) for _ in range(2))
    assert first.state(names) == {}
    weights = _tensors(0)
    first.step(weights, _tensors(1), 0.1)
    copies = [tensor.clone() for tensor in weights]
    second.load(names, {key: tensor.clone() for key, tensor in first.state(names).items()})
    first.step(weights, _tensors(2), 0.1)
    second.step(copies, _tensors(2), 0.1)
    for a, b in zip(weights, copies, strict=True):
        assert torch.equal(a, b)


def test_the_state_of_another_optimizer_is_refused() -> None:
    sgd, adam = (optimizer(name, momentum=0.9, weight_decay=0.1) for name in ("sgd", "adam"))
    sgd.step(_tensors(0), _tensors(1), 0.1)
    with raises("checkpoint.other_optimizer", "velocity", name="adam"):
        adam.load(["a", "b", "c"], sgd.state(["a", "b", "c"]))


def _weights() -> Weights:
    plain = SGD(momentum=0.0, weight_decay=0.0)
    return Weights({"w": torch.tensor([1.0])}, plain)


def test_a_minibatch_in_flight_keeps_its_version() -> None:
    """What PipeDream calls weight stashing: the backward meets the weights of its forward."""
    weights = _weights()
    weights.expect([0])
    version = weights.acquire(0)
    out = version.tensors["w"] * 3
    weights.update([torch.tensor([1.0])], 1.0)
    assert weights.newest is not version
    assert weights.newest.tensors["w"].item() == 0.0
    assert torch.autograd.grad(out, version.tensors["w"])[0].item() == 3.0
    weights.release(version)
    assert not version.tensors, "let go as soon as nobody uses it"


def test_no_copy_is_made_where_nobody_needs_the_old_weights() -> None:
    weights = _weights()
    weights.expect([0, 1, 2])
    memory = weights.newest.tensors["w"].data_ptr()
    for index in range(3):
        weights.release(weights.acquire(index))
        weights.update([torch.tensor([1.0])], 1.0)
    assert weights.newest.tensors["w"].data_ptr() == memory
    assert weights.newest.index == 3 and weights.newest.tensors["w"].item() == -2.0
    assert weights.most_versions == 1


def test_versions_are_no_more_than_minibatches_in_flight_need() -> None:
    weights = _weights()
    weights.expect(range(10))
    flying, memory = [], set()
    for index in range(10):
        flying.append(weights.acquire(index))
        if len(flying) > 3:
            weights.release(flying.pop(0))
        weights.update([torch.tensor([0.5])], 1.0)
        memory.add(weights.newest.tensors["w"].data_ptr())
    assert weights.most_versions == 4
    assert len(memory) <= 5, "the memory of those let go is used again"


def test_a_version_that_a_later_minibatch_will_meet_is_kept() -> None:
    """Double buffering: minibatches 2 and 3 set out with the first weights after they have been updated."""
    weights = _weights()
    weights.expect([0, 0, 0, 1])
    for _ in range(2):
        weights.release(weights.acquire(0))
    weights.update([torch.tensor([1.0])], 1.0)
    old = weights.acquire(0)
    assert old.tensors["w"].item() == 1.0 and weights.newest.tensors["w"].item() == 0.0
    weights.release(old)
    assert not old.tensors
    assert weights.acquire(1) is weights.newest


def test_a_round_without_minibatches_brings_nothing() -> None:
    weights = _weights()
    weights.accumulate([torch.tensor([1.0])])
    weights.accumulate([torch.tensor([2.0])])
    assert float(weights.take_gradients()[0]) == 3.0
    assert weights.take_gradients() == [None]
