"""A backward in two: first the gradients of the inputs, later those of the weights. No product is computed twice.

    weights ─► W1 ─┐        W2 ─┐          First the chain of joints alone is gone through, and what reaches each joint
    inputs ────► joint ──► ReLU ─► joint ──► loss   is kept; later each joint is asked for its weights' gradients.

A joint is a product of weights and features whose operation computes only those gradients it is asked for: torch's own
matrix products and convolutions, and an engine's that says so (`splits_gradients`). All other weights (biases added on
their own, batch norm, MinkowskiEngine's kernels) get their gradients at first, where they are a by-product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

_PRODUCTS = ("ConvolutionBackward0", "AddmmBackward0", "MmBackward0", "LinearBackward0", "MkldnnLinearBackward0")


@dataclass(eq=False)
class Later:
    """The gradients of the weights: those found, and for the others (None) the joints that will tell."""

    found: list[Tensor | None]
    weights: Sequence[Tensor]
    joints: Sequence[tuple[tuple[GradientEdge, ...], tuple[Tensor, ...], tuple[int, ...]]] = ()

    def compute(self) -> list[Tensor | None]:
        """Return the gradients of all weights, None of one that the loss does not reach. The graph is let go."""
        for edges, reached, places in self.joints:
            wanted = [self.weights[place] for place in places]
            gradients = torch.autograd.grad(edges, wanted, reached, allow_unused=True)
            for place, gradient in zip(places, gradients, strict=True):
                self.found[place] = gradient
        self.joints = ()
        return list(self.found)


def split_backward(
    outputs: Sequence[GradientEdge], given: Sequence[Tensor], weights: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor | None], Later]:
    """Return the gradients of `inputs` (None: not reached) and what is left to do for the `weights`.

    `given` are the gradients at `outputs`. `inputs` and `weights` are views of leaves, not leaves.
    """
    joints = _joints(outputs, weights, inputs) if inputs else {}
    late = {place for places in joints.values() for place in places}
    early = [place for place in range(len(weights)) if place not in late]
    wanted = [*inputs, *(weights[place] for place in early)]
    caught: dict[Any, tuple[Tensor | None, ...]] = {}
    hooks = [joint.register_prehook(lambda reached, joint=joint: caught.update({joint: reached})) for joint in joints]
    try:
        gradients = torch.autograd.grad(outputs, wanted, given, retain_graph=bool(joints), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    found: list[Tensor | None] = [None] * len(weights)
    for place, gradient in zip(early, gradients[len(inputs) :], strict=True):
        found[place] = gradient
    kept = [
        _kept(joint, reached, joints[joint]) for joint, reached in caught.items() if not all(g is None for g in reached)
    ]
    return list(gradients[: len(inputs)]), Later(found, weights, kept)


def _kept(joint: Any, reached: Sequence[Tensor | None], places: tuple[int, ...]) -> tuple[Any, Any, tuple[int, ...]]:
    some = [(GradientEdge(joint, k), gradient) for k, gradient in enumerate(reached) if gradient is not None]
    return tuple(edge for edge, _ in some), tuple(gradient for _, gradient in some), places


def _joints(
    outputs: Sequence[GradientEdge], weights: Sequence[Tensor], inputs: Sequence[Tensor]
) -> dict[Any, tuple[int, ...]]:
    """Return joint -> the weights (their places) that only it leads to."""
    place_of = {weight.grad_fn: place for place, weight in enumerate(weights)}
    ends = {tensor.grad_fn for tensor in inputs}
    order = _children_first([output.node for output in outputs])
    leads: dict[Any, bool] = {}  # whether an input lies behind a node
    behind: dict[Any, frozenset[int]] = {}  # the weights behind a node that leads to no input
    claims: dict[Any, frozenset[int]] = {}
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        leads[node] = node in ends or any(leads[child] for child in children)
        own = frozenset({place_of[node]} if node in place_of else ())
        own = own.union(*(behind[child] for child in children if not leads[child]))
        if leads[node]:
            claims[node] = own
        behind[node] = frozenset() if leads[node] else own
    for output in outputs:  # led to without any joint
        claims.setdefault(output.node, behind[output.node])
    counts = [sum(place in claim for claim in claims.values()) for place in range(len(weights))]
    return {
        node: places
        for node, claim in claims.items()
        if leads[node] and _splits(node) and (places := tuple(place for place in sorted(claim) if counts[place] == 1))
    }


def _children_first(roots: Sequence[Any]) -> list[Any]:
    order: list[Any] = []
    seen: set[Any] = set()
    todo = [(root, False) for root in roots]
    while todo:
        node, finished = todo.pop()
        if finished:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo += [(child, False) for child, _ in node.next_functions if child is not None and child not in seen]
    return order


def _splits(node: Any) -> bool:
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return bool(getattr(type(node)._forward_cls, "splits_gradients", False))  # type: ignore[attr-defined]  # torch's
    return node.name() in _PRODUCTS
