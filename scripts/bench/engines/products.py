"""Matrix products of convolutions alone, and the rows' own moves: no engine on gathered rows can do without."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsepipe.data import PointBatch
from sparsepipe.engines import Engine, Subnetwork
from sparsepipe.engines.native.layers import Convolution
from sparsepipe.networks import INPUT, network

from .cases import CLASSES, Case, for_network

CPU = torch.device("cpu")
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@dataclass(eq=False)
class Distinct:
    """Convolutions of a network that have shape and kernel map in common, `count` of them."""

    name: str
    kernel_map: Any
    kernel: Tensor
    features: Tensor  # the first one's input
    wants_features: bool  # nobody asks for the gradient of the network's input
    coordinates: Tensor  # int32 [N, 1 + D] of the input's rows
    tensor_stride: tuple[int, ...]  # of the input
    keeps_voxels: bool  # the output lies on the input's voxels, and the kernel has a centre
    count: int = 1


def convolutions(case: Case, batch: PointBatch, chosen: Engine, device: torch.device = CPU) -> list[Distinct]:
    """List the distinct convolutions of a network on a minibatch."""
    module = Subnetwork(network(case.model, num_classes=CLASSES[case.clouds]), chosen, seed=0).to(device)
    tensors = {INPUT: chosen.tensor(for_network(case, batch), device)}
    found: dict[tuple[int, tuple[int, ...]], Distinct] = {}
    for row in module.table:
        layer, inputs = module.get_submodule(row.id), [tensors[name] for name in row.inputs]
        if isinstance(layer, Convolution) and layer.kernel.dim() == 3:
            kernel_map, _ = layer.kernel_map(*inputs)
            shape = tuple(layer.kernel.shape)
            if (id(kernel_map), shape) in found:
                found[id(kernel_map), shape].count += 1
            else:
                kernel, features = layer.kernel.detach(), inputs[0].features.detach()
                found[id(kernel_map), shape] = Distinct(
                    f"{row.id} {shape}",
                    kernel_map,
                    kernel,
                    features,
                    wants_features=bool(found),
                    coordinates=inputs[0].coordinates,
                    tensor_stride=inputs[0].tensor_stride,
                    keeps_voxels=kernel_map.identity is not None,
                )
        with torch.no_grad():
            tensors |= module.run_layer(row, tensors, minibatch=0)
    return list(found.values())


def products(found: Sequence[Distinct]) -> dict[str, float]:
    """Return the seconds of the matrix products of all these convolutions, those alike timed once."""
    seconds = 0.0
    for own in found:
        multiply = bare_products(own.kernel_map, own.kernel, wants_features=own.wants_features)
        multiply()  # brings the pages in
        seconds += own.count * seconds_of(multiply)
    return {"step": seconds}


def gathered(kernel_map: Any, kernel: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return rows of inputs, rows of outputs and the matrix of each kernel offset that has pairs."""
    counts = kernel_map.pairs.counts
    inputs, outputs = torch.rand(sum(counts), kernel.shape[1]), torch.rand(sum(counts), kernel.shape[2])
    offsets = zip(inputs.split(counts), outputs.split(counts), kernel, strict=True)
    return [offset for offset in offsets if len(offset[0])]


def bare_products(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return the matrix products of a convolution's forward and backward alone, on rows gathered beforehand."""
    products = [
        (x, y, matrix, torch.empty_like(x), torch.empty_like(matrix)) for x, y, matrix in gathered(kernel_map, kernel)
    ]

    def multiply() -> None:
        for x, y, matrix, _, _ in products:
            torch.mm(x, matrix, out=y)
        for x, y, matrix, grad_x, grad_matrix in products:
            torch.mm(x.t(), y, out=grad_matrix)
            if wants_features:
                torch.mm(y, matrix.t(), out=grad_x)

    return multiply


def multiply_onednn(rows: Tensor, matrix: Tensor) -> Tensor:
    """[P, A] times [A, B]; either may be a transpose."""
    return torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], "")


def onednn_products(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return the same products by oneDNN."""
    products = gathered(kernel_map, kernel)

    def multiply() -> None:
        for x, _, matrix in products:
            multiply_onednn(x, matrix)
        for x, y, matrix in products:
            multiply_onednn(x.t(), y)
            if wants_features:
                multiply_onednn(y, matrix.t())

    return multiply


def bare_moves(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return what brings rows to those products and adds up what they give, forward and backward, and nothing else."""
    pairs, back = kernel_map.pairs, kernel_map.transposed.pairs
    inputs, outputs = torch.rand(back.num_out, kernel.shape[1]), torch.rand(pairs.num_out, kernel.shape[2])
    rows = len(pairs.in_rows)
    of_inputs, of_outputs = torch.rand(rows, kernel.shape[1]), torch.rand(rows, kernel.shape[2])

    def move() -> None:
        torch.index_select(inputs, 0, pairs.in_rows, out=of_inputs)
        pairs.bags.sum(of_outputs)
        torch.index_select(inputs, 0, back.out_rows, out=of_inputs)  # not kept from the forward
        torch.index_select(outputs, 0, back.in_rows, out=of_outputs)
        if wants_features:
            back.bags.sum(of_inputs)

    return move


def seconds_of(function: Callable[[], Any], device: torch.device = CPU) -> float:
    """Return the seconds of one call, to the end of what it has a GPU do."""
    wait_for(device)
    start = time.perf_counter()
    function()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
